package media

// Reason says why the media of a request do not take part in the choice of a worker, so that only the text
// before the first of them does.
type Reason string

// The reasons, as metrics, explanations and logs print them.
const (
	NoReason            Reason = ""
	UnsupportedModel    Reason = "unsupported_model"     // the model's family is unknown, or its configuration is incomplete
	ProcessorOverridden Reason = "processor_overridden"  // the request sets arguments of the processor
	DimensionsUnknown   Reason = "dims_unavailable"      // no header from which to read the size was available
	OrientationUnknown  Reason = "orientation_unknown"   // the size is known but not the orientation, and the family's token count depends on it
	SizeRefused         Reason = "size_refused"          // the model's processor takes no media of that shape or length; for an image it is an error to the client
	PlaceholderMismatch Reason = "placeholder_mismatch"  // the prompt does not match what was sent
	OverLimit           Reason = "over_limit"            // more or larger than the limits of this frontend
	HashForwardDisabled Reason = "hash_forward_disabled" // the engine cannot be sent the keys, and would use its own
	NotRouted           Reason = "not_routed"            // the router's mode uses no cache
	CountsDiffer        Reason = "counts_differ"         // an engine of the model makes other tokens of such media than are computed here
)

// IsKnown reports whether r is one of the reasons, or NoReason.
func (r Reason) IsKnown() bool {
	switch r {
	case NoReason, UnsupportedModel, ProcessorOverridden, DimensionsUnknown, OrientationUnknown, SizeRefused,
		PlaceholderMismatch, OverLimit, HashForwardDisabled, NotRouted, CountsDiffer:
		return true
	}
	return false
}
