package engine

// MediaCheckSource is an engine whose counts of media were compared with those that are made for it.
type MediaCheckSource interface {
	// MediaChecks returns what the last comparison found, in the order of the samples; nil before one. The
	// slice belongs to the caller.
	MediaChecks() []MediaCheck
}

// MediaCheck is the comparison of one sample. It is JSON in the state of engines.
type MediaCheck struct {
	// Sample says what was shown ("a JPEG sequence of 40 frames"), Kind which kind of media that is.
	Sample string `json:"sample"`
	Kind   string `json:"kind"`
	// Counted are the tokens of it by the count here, Reported those that the engine made.
	Counted  int `json:"counted,omitempty"`
	Reported int `json:"reported,omitempty"`
	// Unchecked says why there is nothing to compare; "" if there is.
	Unchecked string `json:"unchecked,omitempty"`
}

// Differs reports whether the engine makes other tokens than are counted.
func (c *MediaCheck) Differs() bool { return c.Unchecked == "" && c.Counted != c.Reported }
