package engine

// MediaCheckSource is an engine whose token counts of media were compared with Penstock's.
type MediaCheckSource interface {
	// MediaChecks returns the results of the last comparison, in the order of the samples; nil before the
	// first. The slice belongs to the caller.
	MediaChecks() []MediaCheck
}

// MediaCheck is the comparison of one sample. It is JSON in the engine's state.
type MediaCheck struct {
	// Sample describes the sample ("a JPEG sequence of 40 frames"), Kind is its kind of media.
	Sample string `json:"sample"`
	Kind   string `json:"kind"`
	// Counted is Penstock's token count, Reported the engine's.
	Counted  int `json:"counted,omitempty"`
	Reported int `json:"reported,omitempty"`
	// Unchecked says why there was no comparison; "" if there was one.
	Unchecked string `json:"unchecked,omitempty"`
}

// Differs reports whether the engine's token count differs from Penstock's.
func (c *MediaCheck) Differs() bool { return c.Unchecked == "" && c.Counted != c.Reported }
