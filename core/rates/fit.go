package rates

// line is a time in ms as a function of an amount.
type line struct{ fixed, each float64 }

func (l line) at(x float64) float64 { return l.fixed + float64(l.each*x) }

// lineFit fits a line to samples by weighted least squares. An earlier sample has a weight of forget relative to
// the next one, and a sample of the amount x has a weight of 1/(1 + x/flat)^2, so that relative errors count. Two
// samples of the prior at the amount of the first one, which are forgotten like others, determine the level of the line
// before there is data.
//
// The slope is a ridge estimate. Samples whose amounts hardly differ say how long that amount takes, and nothing of
// another one: their errors alone would make the slope anything. So it is drawn to the slope of shape, which is the line
// as it was when amounts last differed, the prior at first, scaled to the samples: with the strength of samples whose
// amounts have a standard deviation of leastLever of their mean and scale.
type lineFit struct {
	line
	shape           line
	n, x, y, xx, xy float64 // weighted sums
	unit            float64 // the amount which counts as 1 in the sums
	flat            float64 // the amount which takes as long as the fixed part
	scale           float64 // amounts which differ by much less are alike
	samples         int     // up to maxSamples
}

const (
	// forget makes the last 200 samples count.
	forget      = 0.995
	firstForget = 4
	maxSamples  = 1000
	// trusted is the number of samples after which the line says what a likely sample is. maxSurprise then bounds
	// by how much a sample exceeds, or falls short of, the line: a stall of seconds must not count as much as
	// hundreds of prefills.
	trusted     = 10
	maxSurprise = 4
	// minFixed is the least fixed part, in ms.
	minFixed = 0.01
	// leastLever keeps the error which 200 samples of 25 % error cause in the slope below a fifth of level/scale.
	leastLever   = 0.1
	priorSamples = 2
)

// setPrior makes l the line, for amounts of about unit.
func (f *lineFit) setPrior(l line, unit, scale float64) {
	*f = lineFit{line: l, shape: l, unit: unit, flat: 1e12, scale: scale / unit}
	if l.each > 0 {
		f.flat = l.fixed / l.each
	}
}

// addSample adds a sample and updates the line.
func (f *lineFit) addSample(x, y float64) {
	if f.samples == 0 {
		for range priorSamples {
			f.addWeighted(x, f.at(x))
		}
	}
	keep := f.nextForget()
	f.n, f.x, f.y = float64(f.n*keep), float64(f.x*keep), float64(f.y*keep)
	f.xx, f.xy = float64(f.xx*keep), float64(f.xy*keep)
	f.addWeighted(x, y)
	f.solve()
}

// nextForget counts a sample, and returns the weight of what is known before it: less at first, so that a wrong
// prior is forgotten within 50 samples.
func (f *lineFit) nextForget() float64 {
	f.samples = min(f.samples+1, maxSamples)
	return min(forget, 1-1/float64(f.samples+firstForget))
}

// boundSample returns y, or what is near enough to the expected time.
func (f *lineFit) boundSample(y, expected float64) float64 {
	if f.samples < trusted {
		return y
	}
	return min(max(y, expected/maxSurprise), expected*maxSurprise)
}

// weightOf returns the weight of a sample of the amount x.
func (f *lineFit) weightOf(x float64) float64 {
	scale := 1 + x/f.flat
	return 1 / float64(scale*scale)
}

func (f *lineFit) addWeighted(x, y float64) {
	w := f.weightOf(x)
	x /= f.unit
	wx := float64(w * x)
	f.n += w
	f.x += wx
	f.y += float64(w * y)
	f.xx += float64(wx * x)
	f.xy += float64(wx * y)
}

// solve computes the line; neither part is negative.
func (f *lineFit) solve() {
	x, y := f.x/f.n, f.y/f.n
	varies := max(f.xx/f.n-float64(x*x), 0)
	lever := float64(leastLever * (f.scale + x))
	lever = float64(lever * lever)
	usual := float64(f.shape.each*f.unit) * y / f.shape.at(float64(x*f.unit))
	each := max((f.xy/f.n-float64(x*y)+float64(lever*usual))/(varies+lever), 0)
	fixed := y - float64(each*x)
	if fixed < 0 {
		fixed, each = 0, f.xy/f.xx
	}
	f.fixed, f.each = max(fixed, minFixed), each/f.unit
	if varies >= lever && f.samples >= trusted {
		f.shape = f.line
	}
}
