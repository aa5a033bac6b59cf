package bench

import (
	"context"
	"fmt"
	"time"
)

const jobName = "jobs"

// randomJobs is what the runs of fio have in common: a mix of reads and
// writes by threads.
func randomJobs(p Params) FioJob {
	return FioJob{Name: jobName, RW: "randrw", BlockSize: smallBlock, Size: p.JobFileSize, Processes: p.Jobs,
		Threads: true, Direct: true, Runtime: p.Runtime, CPU: AnyCPU}
}

// bothRates is reads and writes together, in MB/s.
func (r FioResult) bothRates() float64 { return (r.Read.BytesPerSec + r.Write.BytesPerSec) / 1e6 }

func jobsManyFiles(p Params) Workload {
	return Workload{Group: "jobs",
		Rows: []Row{{"jobs-files", fmt.Sprintf("fio, %d jobs, 4 KiB randrw, %d files", p.Jobs, p.Jobs), "MB/s", higher}},
		run: func(ctx context.Context, r *Run) ([]float64, error) {
			res, err := RunFio(ctx, r.Dir, randomJobs(p))
			return []float64{res.bothRates()}, err
		}}
}

func jobsOneFile(p Params) Workload {
	return Workload{Group: "jobs", Target: true,
		Rows: []Row{{"jobs-one-file", fmt.Sprintf("fio, %d jobs, 4 KiB randrw, one file", p.Jobs), "MB/s", higher}},
		run: func(ctx context.Context, r *Run) ([]float64, error) {
			job := randomJobs(p)
			job.OneFile, job.Size = true, p.RandomSize
			res, err := RunFio(ctx, r.Dir, job)
			return []float64{res.bothRates()}, err
		}}
}

// jobsBlockSizes repeats the jobs on the same files with larger blocks.
func jobsBlockSizes(p Params) Workload {
	w := Workload{Group: "jobs", Variants: true, MaxRounds: 1}
	for _, size := range p.JobBlocks {
		w.Rows = append(w.Rows, Row{fmt.Sprintf("jobs-bs-%d", size),
			fmt.Sprintf("fio, %d jobs, %s randrw, by flush mode", p.Jobs, FormatSize(int64(size))), "MB/s", higher})
	}
	w.run = func(ctx context.Context, r *Run) ([]float64, error) {
		var values []float64
		for _, size := range p.JobBlocks {
			job := randomJobs(p)
			job.BlockSize, job.Keep, job.Runtime = size, true, max(p.Runtime/2, 100*time.Millisecond)
			res, err := RunFio(ctx, r.Dir, job)
			if err != nil {
				return nil, err
			}
			values = append(values, res.bothRates())
		}
		return values, nil
	}
	return w
}
