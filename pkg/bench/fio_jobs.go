package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
)

// NamedFioResult is what fio measured in one of its jobs.
type NamedFioResult struct {
	Name string `json:"name"`
	FioResult
}

// ParseFio reads what fio has printed as JSON, one result for each job. Other
// lines may stand before it. A job that failed is an error.
func ParseFio(output []byte) ([]NamedFioResult, error) {
	begin := bytes.Index(output, []byte("{\n"))
	if begin < 0 {
		return nil, errors.New("fio has printed no report")
	}
	var report fioReport
	if err := json.NewDecoder(bytes.NewReader(output[begin:])).Decode(&report); err != nil {
		return nil, fmt.Errorf("parse fio's report: %w", err)
	}
	if len(report.Jobs) == 0 {
		return nil, errors.New("fio's report has no job")
	}
	var results []NamedFioResult
	for _, job := range report.Jobs {
		if job.Error != 0 || job.TotalErr != 0 {
			return nil, fmt.Errorf("fio job %s reports error %d (%w), %d errors in all", job.Name, job.Error, syscall.Errno(job.Error), job.TotalErr)
		}
		results = append(results, NamedFioResult{job.Name, FioResult{Read: job.Read.side(), Write: job.Write.side()}})
	}
	return results, nil
}
