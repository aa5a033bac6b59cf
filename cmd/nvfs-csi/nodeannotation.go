//go:build !nvfstools

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/atomicfile"
	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

const (
	// annotationInterval is how long a change of the annotation may take to
	// reach the driver. It concerns volumes that are staged later.
	annotationInterval = 30 * time.Second
	annotationTimeout  = 10 * time.Second
)

// nodeAnnotation follows the annotation of this node that chooses its flush
// mode. What was seen last is kept in a file: the driver has to work while the
// API server cannot be reached, after its own restart as well. It is safe for
// concurrent use.
type nodeAnnotation struct {
	client kubernetes.Interface
	node   string
	file   string

	mu    sync.Mutex
	value string
}

// newNodeAnnotation starts from what was seen before.
func newNodeAnnotation(client kubernetes.Interface, node, stateDir string) (*nodeAnnotation, error) {
	a := &nodeAnnotation{client: client, node: node, file: filepath.Join(stateDir, "flush-mode-annotation")}
	data, err := os.ReadFile(a.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("annotation %s as it was last seen: %w", driver.FlushModeAnnotation, err)
	}
	a.value = string(data)
	return a, nil
}

// get returns what the annotation was when it was last seen; "" for none.
func (a *nodeAnnotation) get() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.value
}

// run looks at the annotation from time to time until ctx ends.
func (a *nodeAnnotation) run(ctx context.Context) {
	tick := time.NewTicker(annotationInterval)
	defer tick.Stop()
	failing := false
	for {
		err := a.refresh(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			klog.ErrorS(err, "The flush mode of this node stays as it was last seen", "annotation", driver.FlushModeAnnotation, "value", a.get())
		}
		failing = err != nil
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// refresh asks the API server once.
func (a *nodeAnnotation) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, annotationTimeout)
	defer cancel()
	node, err := a.client.CoreV1().Nodes().Get(ctx, a.node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node %s (its account needs the right to get nodes): %w", a.node, err)
	}
	value := node.Annotations[driver.FlushModeAnnotation]
	if value == a.get() {
		return nil
	}
	klog.InfoS("The flush mode of this node was changed; it holds for volumes that are staged from now on", "annotation", driver.FlushModeAnnotation, "value", value)
	a.mu.Lock()
	a.value = value
	a.mu.Unlock()
	if err := os.MkdirAll(filepath.Dir(a.file), 0o750); err != nil {
		return fmt.Errorf("keep the node's annotation: %w", err)
	}
	if err := atomicfile.Write(a.file, []byte(value), 0o600); err != nil {
		return fmt.Errorf("keep the node's annotation: %w", err)
	}
	return nil
}
