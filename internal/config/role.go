package config

import (
	"slices"

	"penstock/internal/engine"
)

// WorkerRoles returns the role of each worker whose engine runs in this process, in the order of their ids: of
// up first those which take requests. With prefill workers these are decode workers. It is that of a remote
// engine's worker too. The tree must be valid.
func (l *Loaded) WorkerRoles() []engine.Role {
	if l.Command != Up {
		role, _ := engine.ParseRole(l.Engine.Role) // validated before
		return []engine.Role{role}
	}
	first := engine.RoleAggregated
	if l.Engine.PrefillWorkers > 0 {
		first = engine.RoleDecode
	}
	return slices.Concat(
		slices.Repeat([]engine.Role{first}, l.Engine.Workers),
		slices.Repeat([]engine.Role{engine.RolePrefill}, l.Engine.PrefillWorkers),
		slices.Repeat([]engine.Role{engine.RoleEncode}, l.Engine.EncodeWorkers),
	)
}

// ExchangesBlocks reports whether workers of this process, whose engines run here, exchange KV blocks with others.
func (l *Loaded) ExchangesBlocks() bool {
	return l.Command.HasEngines() && !l.HasRemoteEngines() && slices.ContainsFunc(l.WorkerRoles(), func(r engine.Role) bool {
		return r == engine.RolePrefill || r == engine.RoleDecode
	})
}

// checkRoles checks the settings of roles against the engines.
func (p *problems) checkRoles(c *Config) {
	if !c.HasRemoteEngines() {
		return
	}
	for _, s := range []struct {
		key string
		n   int
	}{{"prefill-workers", c.Engine.PrefillWorkers}, {"encode-workers", c.Engine.EncodeWorkers}} {
		if s.n > 0 {
			p.report(s.key, "it counts workers of engines of this program (tiny, sim); start penstock worker with --role in front of an engine that runs already")
		}
	}
}
