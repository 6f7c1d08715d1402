package main

import (
	"math"
	"testing"
)

func TestSlope(t *testing.T) {
	for _, c := range []struct {
		x, y []float64
		want float64
	}{
		{nil, nil, 0},
		{[]float64{1}, []float64{5}, 0},
		{[]float64{1, 1}, []float64{5, 6}, 0}, // upright: none
		{[]float64{0, 1, 2}, []float64{3, 5, 7}, 2},
		{[]float64{0, 1, 2, 3}, []float64{4, 4, 4, 4}, 0},
		{[]float64{0, 1, 2, 3}, []float64{0, 2, 1, 3}, 0.8}, // by hand: 4/5
	} {
		if got := fitSlope(c.x, c.y); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("slope of %v over %v is %v, want %v", c.y, c.x, got, c.want)
		}
	}
}
