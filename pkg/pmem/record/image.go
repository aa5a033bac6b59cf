package record

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// Image is a content that a crash may leave, told as what it differs from a
// Base by.
type Image struct {
	// Hash tells images of one base apart.
	Hash uint64
	// Point is the event ahead of which the crash comes.
	Point int
	// Ops is the progress of the workers at that point.
	Ops []Progress
	// How says which of the stores that may be lost the crash spares.
	How string

	size    uint64
	durable []unit
	picked  []unit
}

func (i *Image) String() string { return fmt.Sprintf("event %d, %s", i.Point, i.How) }

// Worker is the progress of a worker.
func (i *Image) Worker(n int) Progress {
	if n >= len(i.Ops) {
		return Progress{}
	}
	return i.Ops[n]
}

func hashUnits(b *Base, list []unit) uint64 {
	h := uint64(0)
	for _, u := range list {
		h ^= mix(b, u.off, u.val)
	}
	return h
}

// Options of Images. Images with nothing and with everything that is pending
// are always made.
type Options struct {
	// Seed of what is chosen at random.
	Seed uint64
	// Alone bounds for how many lines of a crash point there is an image with
	// only that line, and one with all but that line; 0 is no bound.
	Alone int
	// Subsets is the number of random sets of lines.
	Subsets int
	// Partial is the number of random prefixes of all lines.
	Partial int
	// Exhaustive makes every set of lines where there are at most that many.
	Exhaustive int
	// Between adds a crash point at every so many calls between two fences;
	// 0 is none.
	Between int
	// From skips crash points before that operation of worker 0 has begun,
	// counted from 1; 0 skips none.
	From int
}

// Images yields the contents that a crash during the trace may leave, each
// once for the same progress, until yield returns false. The crash points are
// ahead of each fence, at the end of each operation, and at the trace's end.
// The same options give the same images in the same order.
func (t *Trace) Images(m Model, o Options, yield func(*Image) bool) {
	g := generator{machine: newMachine(t, m), t: t, o: o, yield: yield, seen: map[imageKey]bool{}, over: map[uint64]uint64{}}
	calls, last := 0, uint32(0)
	for i := range t.events {
		e := &t.events[i]
		g.at = i
		newCall := e.Kind == Store && e.Call != last
		if newCall {
			last = e.Call
			calls++
		}
		switch {
		case g.stop:
			return
		case g.skipped():
		case e.Kind == Fence, e.Kind == OpBegin:
			g.point()
		case newCall && m == EADR:
			g.tornCall(i)
		case newCall && o.Between > 0 && calls%o.Between == 0:
			g.all("all so far")
		}
		g.step(e)
		if e.Kind == OpEnd && !g.skipped() {
			g.at = i + 1
			g.point()
		}
	}
	g.at = len(t.events)
	if !g.stop && !g.skipped() {
		g.point()
	}
}

type imageKey struct {
	hash  uint64
	epoch int
}

type generator struct {
	*machine
	t     *Trace
	o     Options
	yield func(*Image) bool
	seen  map[imageKey]bool
	over  map[uint64]uint64 // scratch
	at    int
	stop  bool
}

func (g *generator) skipped() bool {
	return g.o.From > 0 && (len(g.ops) == 0 || g.ops[0].Begun < g.o.From)
}

// emit yields the image with the picked units. picked is not kept.
func (g *generator) emit(picked []unit, how string, args ...any) {
	if g.stop {
		return
	}
	h := g.hash
	clear(g.over)
	for i := range picked {
		u := &picked[i]
		old, ok := g.over[u.off]
		if !ok {
			old = g.word(u.off)
		}
		now := u.over(old)
		h ^= g.mix(u.off, old) ^ g.mix(u.off, now)
		g.over[u.off] = now
	}
	key := imageKey{h, g.epoch}
	if g.seen[key] {
		return
	}
	g.seen[key] = true
	if len(args) > 0 {
		how = fmt.Sprintf(how, args...)
	}
	img := &Image{Hash: h, Point: g.at, Ops: g.ops, How: how, size: g.t.size,
		durable: g.durable[:len(g.durable):len(g.durable)], picked: slices.Clone(picked)}
	g.stop = !g.yield(img)
}

// pick collects the units of those pending cells that want chooses.
func (g *generator) pick(want func(i int) bool) []unit {
	var list []unit
	for i, id := range g.order {
		if want(i) {
			list = append(list, g.cells[id].units...)
		}
	}
	return list
}

func (g *generator) all(how string) {
	g.emit(g.pick(func(int) bool { return true }), how)
}

// point makes the images of a crash point.
func (g *generator) point() {
	g.emit(nil, "nothing that was pending")
	n := len(g.order)
	if n == 0 {
		return
	}
	g.all("all that was pending")
	rnd := rand.New(rand.NewPCG(g.o.Seed, uint64(g.at)))
	if n <= g.o.Exhaustive {
		for set := uint64(1); set < 1<<n-1; set++ {
			g.emit(g.pick(func(i int) bool { return set>>i&1 == 1 }), "set %b of %d lines", set, n)
		}
	} else {
		g.alone(rnd)
		for k := range g.o.Subsets {
			// In half of them most lines survive, in others few.
			share := uint64(rnd.IntN(15)) + 1
			g.emit(g.pick(func(int) bool { return rnd.Uint64()%16 < share }), "random lines %d", k)
		}
	}
	for k := range g.o.Partial {
		g.emit(g.partial(rnd), "random prefixes %d", k)
	}
}

// alone makes images with each line alone, and with all others.
func (g *generator) alone(rnd *rand.Rand) {
	which := rnd.Perm(len(g.order))
	if g.o.Alone > 0 && len(which) > g.o.Alone {
		which = which[:g.o.Alone]
	}
	for _, k := range which {
		off := g.order[k] * g.model.cellSize()
		g.emit(g.pick(func(i int) bool { return i == k }), "only line %#x", off)
		g.emit(g.pick(func(i int) bool { return i != k }), "all but line %#x", off)
	}
}

// partial picks of each cell some prefix of its calls, and any part of the
// call that follows.
func (g *generator) partial(rnd *rand.Rand) []unit {
	var list []unit
	for _, id := range g.order {
		units := g.cells[id].units
		switch rnd.IntN(4) {
		case 0:
			continue
		case 1:
			list = append(list, units...)
			continue
		}
		cut := rnd.IntN(len(units) + 1)
		for cut > 0 && cut < len(units) && units[cut-1].call == units[cut].call {
			cut--
		}
		list = append(list, units[:cut]...)
		list = appendTorn(list, units[cut:], rnd)
	}
	return list
}

// appendTorn appends any part of the call that units begin with.
func appendTorn(list, units []unit, rnd *rand.Rand) []unit {
	for _, u := range units {
		if u.call != units[0].call {
			break
		}
		if u.mask != wholeWord {
			u.mask &= uint8(rnd.Uint32())
		} else if rnd.Uint32()&1 == 0 {
			u.mask = 0
		}
		if u.mask != 0 {
			list = append(list, u)
		}
	}
	return list
}

// tornCall makes the images of a crash ahead of and within a call, where all
// stores before it are durable.
func (g *generator) tornCall(first int) {
	g.emit(nil, "all so far")
	var units []unit
	for i := first; i < len(g.t.events); i++ {
		e := &g.t.events[i]
		if e.Kind != Store || e.Call != g.t.events[first].Call {
			break
		}
		units = append(units, unit{off: e.Off, val: e.Val, mask: e.Mask, call: e.Call})
	}
	if len(units) == 1 && units[0].mask == wholeWord {
		return
	}
	rnd := rand.New(rand.NewPCG(g.o.Seed, uint64(first)))
	for k := range g.o.Partial {
		if k%2 == 0 {
			g.emit(units[:rnd.IntN(len(units))], "prefix %d of a call", k)
		} else {
			g.emit(appendTorn(nil, units, rnd), "part %d of a call", k)
		}
	}
}
