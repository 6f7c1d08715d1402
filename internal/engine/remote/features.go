package remote

import (
	"errors"

	"penstock/core/fault"
	"penstock/internal/engine"
)

// errFailed marks errors of an engine that reports its own failure (status 500).
var errFailed = errors.New("failed")

// dialectFor returns the dialect for req.
func (b *Base) dialectFor(req *engine.Request) Dialect {
	if len(req.Features) > 0 && b.cfg.Features != nil {
		return b.cfg.Features
	}
	return b.cfg.Dialect
}

// mapFeaturesError returns the meaning of err, which ended a call, where the request has Features: an engine
// that refuses them, or fails on them, may still serve the request without them. If output was delivered,
// here or by another worker, only another worker can continue.
func (b *Base) mapFeaturesError(p *SubRequest, err error) error {
	switch {
	case err == nil || len(p.Request.Features) == 0:
		return err
	case p.isPromptComputed() || isResumed(p.Request):
		if fault.CodeOf(err) == fault.EngineError { // perhaps caused by another engine's features: a third engine may take them
			return &fault.Error{Code: fault.Unavailable, Message: err.Error(), Err: err}
		}
		return err
	}
	failed := errors.Is(err, errFailed) || fault.CodeOf(err) == fault.EngineError
	switch code := fault.CodeOf(err); {
	case failed, code == fault.TooLarge, code == fault.Unimplemented:
		b.mu.Lock()
		news := b.mu.unfeatured.record()
		b.mu.Unlock()
		if news {
			b.log.Warn("the engine does not take what another one's processor made of media", "error", err)
		}
	case code == fault.Invalid: // its reason may be another field
	default:
		return err
	}
	return engine.RefuseFeatures(err)
}

// RefusedFeatures reports whether the engine has recently refused, or failed on, Features.
func (b *Base) RefusedFeatures() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.unfeatured.isRecent()
}

// featureWarnings warns of an engine that refuses Features.
func (b *Base) featureWarnings() []engine.Warning {
	if !b.RefusedFeatures() {
		return nil
	}
	return []engine.Warning{{
		Code: engine.WarnFeatures, Remedy: "run one version of the engine for all workers of the model, with the same settings, or set mm-transfer to off",
		Detail: "the engine refuses or fails over what another one's processor made of media: requests that show some are passed on as they are, and their streams cannot move",
	}}
}
