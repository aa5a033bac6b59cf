package pmem

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// CalibrateOptions of Calibrate.
type CalibrateOptions struct {
	ScratchOptions
	// Budget is how long to measure; 0 is 2 seconds.
	Budget time.Duration
	// Modes are what to choose among; empty is every mode that the memory
	// allows.
	Modes []Mode
}

// Calibration is what Calibrate measured, and the strategy that follows.
type Calibration struct {
	Kind     Kind      `json:"kind"`
	NUMANode int       `json:"numaNode"`
	CPU      string    `json:"cpu"` // model, see CPUModel
	Time     time.Time `json:"time"`
	Emulated bool      `json:"emulated"`
	Measured bool      `json:"measured"` // false: Choice is a default
	Choice   Strategy  `json:"choice"`
	Why      string    `json:"why"`
	Table    []Row     `json:"table,omitempty"`
}

var (
	calibrationSizes = []int{64, 128, 256, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20}
	// sharedSizes are measured with several writers too.
	sharedSizes = []int{256, 4 << 10, 64 << 10}
)

const (
	calibrationBudget = 2 * time.Second
	// capSize is the size of persist that the writer cap is found with, and
	// capLoss how much throughput more writers must lose to be capped.
	capSize = 64 << 10
	capLoss = 0.9
	// tie is by what factor a mode may be slower and still count as as fast:
	// repeated measurements differ by as much.
	tie = 1.05
)

// Calibrate measures the modes that the backing allows, on memory of its kind
// and with threads on its NUMA node, and chooses a strategy. Where there is no
// memory that may be overwritten (ErrNoScratch) it returns the default strategy,
// unmeasured.
func Calibrate(ctx context.Context, opts CalibrateOptions) (Calibration, error) {
	s, err := OpenScratch(opts.ScratchOptions)
	if errors.Is(err, ErrNoScratch) {
		return uncalibrated(opts, err)
	}
	if err != nil {
		return Calibration{}, err
	}
	c, err := s.Calibrate(ctx, opts.Budget, opts.Modes...)
	return c, errors.Join(err, s.Close())
}

func uncalibrated(opts CalibrateOptions, cause error) (Calibration, error) {
	b, err := Probe(opts.Path)
	if err != nil {
		return Calibration{}, errors.Join(cause, err)
	}
	if err := CheckMode(b, opts.Emulated, Auto); err != nil {
		return Calibration{}, err
	}
	choice, why := DefaultStrategy(b, opts.Emulated)
	return Calibration{
		Kind: b.Kind, NUMANode: b.NUMANode, CPU: CPUModel(), Time: time.Now().UTC(),
		Emulated: opts.Emulated || b.Volatile,
		Choice:   choice, Why: fmt.Sprintf("%s (%v)", why, cause),
	}, nil
}

// Calibrate is the function of that name on scratch memory that is open already.
// The choice is among modes; none is every mode that the memory allows.
func (s *Scratch) Calibrate(ctx context.Context, budget time.Duration, modes ...Mode) (Calibration, error) {
	if budget == 0 {
		budget = calibrationBudget
	}
	if len(modes) == 0 {
		modes = s.Modes()
	}
	c := Calibration{
		Kind: s.Backing().Kind, NUMANode: s.NUMANode(), CPU: CPUModel(), Time: time.Now().UTC(),
		Emulated: s.Emulated(),
	}
	fallback, why := DefaultStrategy(s.Backing(), s.Emulated())
	candidates := persistentModes(s.Backing(), modes)
	if len(candidates) == 0 {
		c.Choice, c.Why = fallback, fmt.Sprintf("%s; there is nothing to choose among %s", why, joinModes(modes))
		return c, nil
	}
	smalls := smallModes(candidates)
	measured := slices.Compact(slices.Sorted(slices.Values(slices.Concat(modes, smalls))))
	table, err := s.MeasureAll(ctx, calibrationWorkloads(measured, WriterCounts(s.CPUs())), budget)
	if err != nil {
		return Calibration{}, fmt.Errorf("calibrate %s: %w", s.Backing().Path, err)
	}
	c.Measured, c.Table = true, table
	c.Choice, c.Why = choose(table, smalls, candidates, fallback)
	if c.Emulated {
		c.Why += "; measured on emulated memory"
	}
	return c, nil
}

// WriterCounts are the numbers of writers to measure with n CPUs: powers of
// two, and n.
func WriterCounts(n int) []int {
	var counts []int
	for w := 1; w < n; w *= 2 {
		counts = append(counts, w)
	}
	return append(counts, n)
}

func calibrationWorkloads(modes []Mode, writers []int) []Workload {
	var all []Workload
	for _, size := range calibrationSizes {
		for _, n := range writers {
			if n > 1 && !slices.Contains(sharedSizes, size) {
				continue
			}
			for _, mode := range modes {
				if mode == MSync {
					continue // never the choice where there is another
				}
				all = append(all, Workload{Mode: mode, Size: size, Writers: n})
			}
		}
	}
	return all
}

// costs is the mean logarithm of the time of a persist, by mode and size: a
// factor weighs the same at every size and number of writers.
type costs map[Mode]map[int]float64

func newCosts(table []Row) costs {
	c, n := costs{}, map[Mode]map[int]int{}
	for _, r := range table {
		if c[r.Mode] == nil {
			c[r.Mode], n[r.Mode] = map[int]float64{}, map[int]int{}
		}
		n[r.Mode][r.Size]++
		c[r.Mode][r.Size] += (math.Log(r.NsPerPersist) - c[r.Mode][r.Size]) / float64(n[r.Mode][r.Size])
	}
	return c
}

// persistentModes leaves out msync, and eadr where the caches are not inside the
// persistence domain: on memory that is volatile anyway it is allowed and would
// always win, but would hide what real memory costs. The table shows it.
func persistentModes(b Backing, modes []Mode) []Mode {
	var persistent []Mode
	for _, m := range modes {
		if m == MSync || m == EADR && b.Domain != DomainCPUCache {
			continue
		}
		persistent = append(persistent, m)
	}
	return persistent
}

// smallModes are the candidates that can store words. Where all of them stream,
// it is the instruction that these pair with.
func smallModes(candidates []Mode) []Mode {
	small := slices.DeleteFunc(slices.Clone(candidates), Mode.streams)
	if len(small) == 0 {
		return []Mode{bestFlush()}
	}
	return small
}

// choose starts from usual, the documented default, and changes one part after
// the other (mode of small persists, mode of bulk, threshold) as long as that
// makes the measured persists faster by more than the noise. Where a part of
// usual is no candidate, the mode that AllModes names first takes its place.
func choose(table []Row, smalls, bulks []Mode, usual Strategy) (Strategy, string) {
	c := newCosts(table)
	best := Strategy{Small: preferring(usual.Small, smalls)[0], Bulk: preferring(usual.Bulk, bulks)[0], Threshold: usual.Threshold}
	thresholds := calibrationSizes
	if usual.Threshold == 0 || !slices.Contains(bulks, best.Small) {
		best.Threshold = streamThreshold
	}
	if !slices.Contains(bulks, best.Small) {
		thresholds = nil // it only helps out, see NamedStrategy
	}
	for {
		better, found := c.improve(best, smalls, bulks, thresholds)
		if !found {
			break
		}
		best = better
	}
	if best.Small == best.Bulk {
		best.Threshold = 0
	}
	best.WriterCap = writerCap(table, best.Bulk)
	return best, explain(best, table, slices.Concat(smalls, bulks))
}

// improve changes the one part of s that gains most, if it gains enough.
func (c costs) improve(s Strategy, smalls, bulks []Mode, thresholds []int) (best Strategy, found bool) {
	var most float64
	try := func(other Strategy) {
		if total, mean := c.gain(s, other); mean > math.Log(tie) && total > most {
			best, most, found = other, total, true
		}
	}
	for _, m := range preferring(s.Small, smalls) {
		try(Strategy{Small: m, Bulk: s.Bulk, Threshold: s.Threshold})
	}
	for _, m := range preferring(s.Bulk, bulks) {
		try(Strategy{Small: s.Small, Bulk: m, Threshold: s.Threshold})
	}
	for _, t := range thresholds {
		try(Strategy{Small: s.Small, Bulk: s.Bulk, Threshold: uint64(t)})
	}
	return best, found
}

// preferring returns the modes in the order of AllModes, but first ahead.
func preferring(first Mode, modes []Mode) []Mode {
	rank := func(m Mode) int {
		if m == first {
			return -1
		}
		return slices.Index(AllModes(), m)
	}
	return slices.SortedFunc(slices.Values(modes), func(a, b Mode) int { return rank(a) - rank(b) })
}

// gain is how much cheaper the second strategy is: in total, and in the mean of
// what is done by another mode.
func (c costs) gain(from, to Strategy) (total, mean float64) {
	changed := 0
	compare := func(a, b Mode, cost func(Mode) float64) {
		if a != b {
			changed++
			total += cost(a) - cost(b)
		}
	}
	for _, size := range calibrationSizes {
		compare(from.at(size), to.at(size), func(m Mode) float64 { return c[m][size] })
	}
	compare(from.Small, to.Small, c.words)
	if changed == 0 {
		return 0, 0
	}
	return total, total / float64(changed)
}

// words is the cost of the words that are flushed with the small mode: metadata
// of one to a few lines.
func (c costs) words(m Mode) float64 {
	var sum float64
	few := calibrationSizes[:3]
	for _, size := range few {
		sum += c[m][size]
	}
	return sum / float64(len(few))
}

// at is the mode that persists size bytes.
func (s Strategy) at(size int) Mode {
	if uint64(size) < s.Threshold {
		return s.Small
	}
	return s.Bulk
}

// writerCap is the number of writers with the highest throughput when more
// lose from it, else 0.
func writerCap(table []Row, bulk Mode) int {
	var peak, last Row
	for _, r := range table {
		if r.Mode != bulk || r.Size != capSize {
			continue
		}
		if r.GBps > peak.GBps {
			peak = r
		}
		if r.Writers > last.Writers {
			last = r
		}
	}
	if last.GBps < capLoss*peak.GBps {
		return peak.Writers
	}
	return 0
}

// explain compares the choice with the best other candidate at a few sizes.
func explain(s Strategy, table []Row, candidates []Mode) string {
	var parts []string
	for _, size := range []int{64, 4 << 10, 64 << 10} {
		mode := s.at(size)
		ours, other := compare(table, candidates, mode, size)
		if ours.Writers != 0 {
			parts = append(parts, fmt.Sprintf("%d B: %s %.0f ns%s", size, mode, ours.NsPerPersist, verdict(ours, other)))
		}
	}
	why := "measured with one writer: " + strings.Join(parts, "; ")
	if s.WriterCap > 0 {
		why += fmt.Sprintf("; throughput falls beyond %d writers", s.WriterCap)
	}
	return why
}

// verdict says how the chosen mode does against the best other one.
func verdict(ours, other Row) string {
	switch {
	case other.Writers == 0:
		return ""
	case ours.NsPerPersist > tie*other.NsPerPersist:
		return fmt.Sprintf(" (%s %.0f ns, but no better over all sizes and writers)", other.Mode, other.NsPerPersist)
	case other.NsPerPersist > tie*ours.NsPerPersist:
		return fmt.Sprintf(", best other %s %.0f ns", other.Mode, other.NsPerPersist)
	}
	return fmt.Sprintf(", a tie with %s", other.Mode)
}

// compare returns the row of mode and that of the fastest other candidate.
func compare(table []Row, candidates []Mode, mode Mode, size int) (ours, other Row) {
	for _, r := range table {
		switch {
		case r.Size != size || r.Writers != 1:
		case r.Mode == mode:
			ours = r
		case !slices.Contains(candidates, r.Mode):
		case other.Writers == 0 || r.NsPerPersist < other.NsPerPersist:
			other = r
		}
	}
	return ours, other
}
