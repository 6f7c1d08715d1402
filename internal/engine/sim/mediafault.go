package sim

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"penstock/core/encode"
	"penstock/core/media"
	"penstock/internal/engine"
)

// MediaFault makes the encoding of media fail: requests which show such an object are refused.
type MediaFault struct {
	Failure encode.FailureKind
	// Tokens is the number of tokens from which on an object fails.
	Tokens int
}

// MaxMediaFaults bounds the faults of an engine.
const MaxMediaFaults = 16

// ParseMediaFaults parses faults: the name of a failure, and the number of tokens from which on an object fails with
// it, KIND or KIND:TOKENS, separated by commas. The first which applies counts.
func ParseMediaFaults(text string) ([]MediaFault, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var all []MediaFault
	for part := range strings.SplitSeq(text, ",") {
		name, tokens, hasTokens := strings.Cut(strings.TrimSpace(part), ":")
		f := MediaFault{Failure: engine.FailureKindOf(name)}
		var err error
		if hasTokens {
			f.Tokens, err = strconv.Atoi(tokens)
		}
		if err != nil || f.Failure == encode.NotFailed || f.Tokens < 0 || f.Tokens > media.MaxExpanded || len(all) == MaxMediaFaults {
			return nil, fmt.Errorf("%.100q is not KIND or KIND:TOKENS, at most %d of them, with a kind of %s", part, MaxMediaFaults, strings.Join(engine.FailureNames(), ", "))
		}
		all = append(all, f)
	}
	return all, nil
}

// failMedia returns the failures of a request's objects, or nil.
func failMedia(faults []MediaFault, req *engine.Request) error {
	if len(faults) == 0 || len(req.Objects) != len(req.Media) {
		return nil
	}
	var failed []error
	for i := range req.Objects {
		tokens := req.Media[i].End - req.Media[i].Start
		for _, f := range faults {
			if tokens >= f.Tokens {
				failed = append(failed, engine.NewMediaFailure(i, f.Failure, &req.Objects[i], "the simulated encoder fails so"))
				break
			}
		}
	}
	if len(failed) == 1 {
		return failed[0]
	}
	return errors.Join(failed...)
}
