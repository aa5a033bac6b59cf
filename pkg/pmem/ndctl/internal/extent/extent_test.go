package extent

import (
	"reflect"
	"testing"
)

func TestHolesAreAlignedAndSorted(t *testing.T) {
	used := []Extent{{Offset: 64, Length: 16}, {Offset: 16, Length: 17}}
	got := Holes(100, 16, used)
	want := []Extent{{0, 16}, {48, 16}, {80, 16}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Holes = %v, want %v", got, want)
	}
	if Largest(got) != 16 || Total(got) != 48 {
		t.Errorf("Largest %d, Total %d; want 16 and 48", Largest(got), Total(got))
	}
}

func TestHolesOfEmptyAndFullRegion(t *testing.T) {
	if got := Holes(64, 16, nil); !reflect.DeepEqual(got, []Extent{{0, 64}}) {
		t.Errorf("empty region: %v", got)
	}
	if got := Holes(64, 16, []Extent{{0, 64}}); got != nil {
		t.Errorf("full region: %v", got)
	}
}

func TestBestFitTakesTheSmallestHole(t *testing.T) {
	holes := []Extent{{0, 64}, {100, 32}, {200, 32}, {300, 16}}
	if off, ok := BestFit(holes, 20); !ok || off != 100 {
		t.Errorf("BestFit(20) = %d, %v; want 100", off, ok)
	}
	if _, ok := BestFit(holes, 65); ok {
		t.Error("BestFit found room for more than the largest hole")
	}
}
