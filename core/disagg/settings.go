package disagg

// SplitSettings are what one place sets of a SplitConfig: a request, an operator at run time, a process. nil is unset.
// A place which sets a limit of the policy ByThreshold and no policy selects that policy.
type SplitSettings struct {
	Policy                *SplitPolicy
	MaxLocalPrefillLength *int // at most MaxLocalTokens
	MaxPrefillQueueSize   *int // at most MaxQueuedJobs
}

// The bounds of the limits of ByThreshold.
const (
	MaxLocalTokens = 1 << 30
	MaxQueuedJobs  = 1 << 20
)

// Over returns what s sets, and where it is unset what base sets, which is another place.
func (s SplitSettings) Over(base SplitSettings) SplitSettings {
	return s.selectPolicy().Or(base.selectPolicy())
}

// Or is Over for the same place, such as earlier values of it: a limit of s does not select a policy.
func (s SplitSettings) Or(base SplitSettings) SplitSettings {
	if s.Policy == nil {
		s.Policy = base.Policy
	}
	if s.MaxLocalPrefillLength == nil {
		s.MaxLocalPrefillLength = base.MaxLocalPrefillLength
	}
	if s.MaxPrefillQueueSize == nil {
		s.MaxPrefillQueueSize = base.MaxPrefillQueueSize
	}
	return s
}

// Apply returns c with what s sets.
func (s SplitSettings) Apply(c SplitConfig) SplitConfig {
	s = s.selectPolicy()
	if s.Policy != nil {
		c.Policy = *s.Policy
	}
	if s.MaxLocalPrefillLength != nil {
		c.MaxLocalPrefillLength = *s.MaxLocalPrefillLength
	}
	if s.MaxPrefillQueueSize != nil {
		c.MaxPrefillQueueSize = *s.MaxPrefillQueueSize
	}
	return c
}

// selectPolicy returns s with the policy which its limits select.
func (s SplitSettings) selectPolicy() SplitSettings {
	if s.Policy == nil && (s.MaxLocalPrefillLength != nil || s.MaxPrefillQueueSize != nil) {
		s.Policy = new(ByThreshold)
	}
	return s
}
