package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

const (
	// fetchTimeout bounds the question to one node.
	fetchTimeout = 15 * time.Second
	// fetchParallel is how many nodes are asked at the same time.
	fetchParallel = 16
	// maxReport is more than a node with thousands of volumes has to say.
	maxReport = 16 << 20
)

// fetcher asks nodes for their reports.
type fetcher struct {
	client *http.Client
	port   int
}

// fetch asks the drivers in these pods. A node that does not answer makes the
// result incomplete and is no error: it may just be starting.
func (f fetcher) fetch(ctx context.Context, pods []*corev1.Pod) nodes {
	reports := make([]*driver.Report, len(pods))
	var group errgroup.Group
	group.SetLimit(fetchParallel)
	for i, pod := range pods {
		group.Go(func() error {
			report, err := f.fetchOne(ctx, pod)
			if err != nil {
				klog.V(2).InfoS("A node does not report", "node", pod.Spec.NodeName, "pod", klog.KObj(pod), "reason", err.Error())
				return nil
			}
			reports[i] = report
			return nil
		})
	}
	_ = group.Wait() // no function returns an error
	result := nodes{complete: true}
	for _, report := range reports {
		if report == nil {
			result.complete = false
			continue
		}
		result.reports = append(result.reports, *report)
	}
	return result
}

func (f fetcher) fetchOne(ctx context.Context, pod *corev1.Pod) (*driver.Report, error) {
	if pod.Status.PodIP == "" {
		return nil, fmt.Errorf("the pod has no address yet")
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	url := "http://" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(f.port)) + driver.ReportPath
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := f.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxReport))
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s: %s", url, response.Status, body)
	}
	var report driver.Report
	if err := json.Unmarshal(body, &report); err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	if report.Node != pod.Spec.NodeName {
		return nil, fmt.Errorf("%s answers for node %q", url, report.Node)
	}
	return &report, nil
}
