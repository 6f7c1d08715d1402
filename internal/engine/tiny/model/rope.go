package model

import "math"

// rotaryFrequencies returns, for each pair of a head's elements, the angle in radians by which one position
// rotates it: theta^(-2i/HeadDim), then scaled. They are rounded to float32, as are the angles later, because
// models were trained with that.
func (c *Config) rotaryFrequencies() []float32 {
	freqs := make([]float32, c.HeadDim/2)
	for i := range freqs {
		f := math.Pow(c.RopeTheta, -float64(2*i)/float64(c.HeadDim))
		freqs[i] = float32(c.RopeScaling.scaleFrequency(f))
	}
	return freqs
}

// scaleFrequency applies the scaling to one frequency. For llama3: rotations with a wavelength below
// OriginalMaxPositions/HighFreqFactor positions are kept, those above OriginalMaxPositions/LowFreqFactor are
// divided by Factor, and between the two the result is interpolated linearly (in the number of turns within
// the original context). Source: the Llama 3.1 reference code.
func (s *RopeScaling) scaleFrequency(freq float64) float64 {
	switch s.Type {
	case "linear":
		return freq / s.Factor
	case "llama3":
		turns := float64(s.OriginalMaxPositions) * freq / (2 * math.Pi)
		switch {
		case turns > s.HighFreqFactor:
			return freq
		case turns < s.LowFreqFactor:
			return freq / s.Factor
		}
		keep := (turns - s.LowFreqFactor) / (s.HighFreqFactor - s.LowFreqFactor)
		return float64(keep*freq) + float64((1-keep)*(freq/s.Factor))
	}
	return freq
}

// fillAngles writes the cosine and sine of each frequency at a position.
func fillAngles(cos, sin []float32, freqs []float32, position int) {
	for i, f := range freqs {
		s, c := math.Sincos(float64(float32(position) * f))
		cos[i], sin[i] = float32(c), float32(s)
	}
}

// fillTokenAngles writes the cosine and sine of each pair of a head at the positions of a token.
func (m *Model) fillTokenAngles(cos, sin []float32, turns [3]int32) {
	if turns[0] == turns[1] && turns[1] == turns[2] || m.cfg.MRope == [3]int{} {
		fillAngles(cos, sin, m.freqs, int(turns[0]))
		return
	}
	first := 0
	for i, n := range m.cfg.MRope {
		fillAngles(cos[first:first+n], sin[first:first+n], m.freqs[first:first+n], int(turns[i]))
		first += n
	}
}

// rotateHead rotates each pair (x[i], x[i+half]) of one head by its angle.
func rotateHead(x, cos, sin []float32) {
	half := len(x) / 2
	low, high := x[:half], x[half:]
	cos, sin = cos[:half], sin[:half]
	for i, a := range low {
		b := high[i]
		low[i] = float32(a*cos[i]) - float32(b*sin[i])
		high[i] = float32(b*cos[i]) + float32(a*sin[i])
	}
}
