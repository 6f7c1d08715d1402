package remote

import (
	"errors"

	"penstock/core/fault"
	"penstock/internal/engine"
)

// errFailed marks errors of an engine that says of itself that it failed (status 500).
var errFailed = errors.New("failed")

// dialect is how the engine is asked for what req wants.
func (b *Base) dialect(req *engine.Request) Dialect {
	if len(req.Features) > 0 && b.cfg.Features != nil {
		return b.cfg.Features
	}
	return b.cfg.Dialect
}

// featured returns what err, which ended a call, means where the request has Features: an engine that refuses
// them, or fails over them, may still serve it another way. Where an answer has begun, here or at another
// worker, only another worker can go on with it.
func (b *Base) featured(p *Part, err error) error {
	switch {
	case err == nil || len(p.Request.Features) == 0:
		return err
	case p.begun() || resumed(p.Request):
		if fault.Of(err) == fault.EngineError { // about what another one's processor made, perhaps: a third may take it
			return &fault.Error{Code: fault.Unavailable, Message: err.Error(), Err: err}
		}
		return err
	}
	failed := errors.Is(err, errFailed) || fault.Of(err) == fault.EngineError
	switch code := fault.Of(err); {
	case failed, code == fault.TooLarge, code == fault.Unimplemented:
		b.mu.Lock()
		news := b.mu.unfeatured.happened()
		b.mu.Unlock()
		if news {
			b.log.Warn("the engine does not take what another one's processor made of media", "error", err)
		}
	case code == fault.Invalid: // it may be about something else
	default:
		return err
	}
	return engine.RefuseFeatures(err)
}

// RefusedFeatures reports whether the engine has lately refused, or failed over, what a processor made of media.
func (b *Base) RefusedFeatures() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.unfeatured.lately()
}

// noFeatures warns of an engine that refuses them.
func (b *Base) noFeatures() []engine.Warning {
	if !b.RefusedFeatures() {
		return nil
	}
	return []engine.Warning{{
		Code: engine.WarnFeatures, Remedy: "run one version of the engine for all workers of the model, with the same settings, or set mm-transfer to off",
		Detail: "the engine refuses or fails over what another one's processor made of media: requests that show some are passed on as they are, and their streams cannot move",
	}}
}
