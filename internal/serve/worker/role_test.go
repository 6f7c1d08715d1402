package worker_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
	"penstock/internal/serve/servetest"
	"penstock/internal/serve/worker"
)

// TestRoles: a worker of each role registers under its kind with its role on the card. Aggregated and decode
// workers serve whole requests; the others, with an engine which encodes nothing, refuse every request and say so.
func TestRoles(t *testing.T) {
	for role, kind := range map[engine.Role]disco.Kind{
		engine.RoleAggregated: disco.KindWorker, engine.RoleDecode: disco.KindWorker,
		engine.RolePrefill: disco.KindPrefill, engine.RoleEncode: disco.KindEncode,
	} {
		t.Run(role.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, servetest.Config{})
				r.cfg.Role = role
				r.start(r.engine)
				defer r.stop()
				in := r.registry.Instances()[0]
				if in.Kind != kind || r.card().Role != role {
					t.Errorf("registered as %s with role %s", in.Kind, r.card().Role)
				}
				if got, err := worker.DescribeFunc(r.rpc)(t.Context(), in.Addr); err != nil || cmp.Diff(in, got) != "" {
					t.Errorf("described: %v\n%s", err, cmp.Diff(in, got))
				}
				var pong engine.Pong
				if err := r.rpc.Call(t.Context(), in.Addr, engine.MethodPing, nil, func(frame []byte) error { return json.Unmarshal(frame, &pong) }); err != nil {
					t.Fatal(err)
				}
				tokens, err := r.generate(t.Context(), in.Addr, request(4))
				if role.TakesRequests() {
					if err != nil || len(tokens) != 5 || len(pong.Warnings) != 0 {
						t.Errorf("tokens %v, error %v, warnings %+v", tokens, err, pong.Warnings)
					}
					return
				}
				if len(pong.Warnings) != 1 || pong.Warnings[0].Code != engine.WarnRoleUnused || pong.State != engine.StateReady {
					t.Errorf("state %s, warnings %+v", pong.State, pong.Warnings)
				}
				for _, method := range []string{
					engine.MethodGenerate, engine.MethodEmbed, engine.MethodPreprocess, engine.MethodPassthrough,
					engine.MethodEncode, engine.MethodPrefill, engine.MethodFetch,
				} {
					err := r.rpc.Call(t.Context(), in.Addr, method, engine.AppendRequest(nil, request(4)), func([]byte) error { return nil })
					asked := role == engine.RoleEncode && (method == engine.MethodEncode || method == engine.MethodFetch)
					if fault.CodeOf(err) != fault.Unimplemented || !asked && !strings.Contains(err.Error(), "has the role "+role.String()) {
						t.Errorf("%s: %v", method, err)
					}
				}
				if n := len(r.engine.HeldPrefixes()); n != 0 {
					t.Errorf("the engine computed %d blocks", n)
				}
			})
		})
	}
}

// TestPrefillLegs: a prefill worker whose engine moves KV blocks itself takes prefill legs, and nothing else.
func TestPrefillLegs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		card := r.engine.Card()
		card.KVConnector = engine.NIXLConnector
		r.engine = servetest.New(servetest.Config{Card: card})
		r.cfg.Role = engine.RolePrefill
		r.start(r.engine)
		defer r.stop()
		addr := r.registry.Instances()[0].Addr
		var pong engine.Pong
		if err := r.rpc.Call(t.Context(), addr, engine.MethodPing, nil, func(frame []byte) error { return json.Unmarshal(frame, &pong) }); err != nil || len(pong.Warnings) != 0 {
			t.Errorf("warnings %+v, %v", pong.Warnings, err)
		}
		for leg, takes := range map[engine.Leg]bool{engine.LegPrefill: true, engine.LegWhole: false, engine.LegDecode: false} {
			req := request(4)
			req.Leg = leg
			_, err := r.generate(t.Context(), addr, req)
			if takes && err != nil || !takes && (fault.CodeOf(err) != fault.Unimplemented || !strings.Contains(err.Error(), "prefill legs only")) {
				t.Errorf("leg %d: %v", leg, err)
			}
		}
		if err := r.rpc.Call(t.Context(), addr, engine.MethodEmbed, nil, func([]byte) error { return nil }); fault.CodeOf(err) != fault.Unimplemented {
			t.Errorf("embed: %v", err)
		}
	})
}

// TestRolesStart: a prefill or encode worker starts beside workers whose cards differ in what it does not share
// with them, and not beside workers from which it differs in what it does.
func TestRolesStart(t *testing.T) {
	here := disco.Instance{ID: 5, Namespace: "penstock", Component: "backend", Host: "node-5", PID: 55}
	for name, c := range map[string]struct {
		role   engine.Role
		change func(*engine.Card)
		want   string // in the error; "" if it starts
	}{
		"decode, another context":    {engine.RoleDecode, func(c *engine.Card) { c.ContextLength = 100 }, "context_length is 1048576 here and 100 at worker 5"},
		"prefill, another context":   {engine.RolePrefill, func(c *engine.Card) { c.ContextLength, c.BlockSize = 100, 64 }, ""},
		"prefill, other numerics":    {engine.RolePrefill, func(c *engine.Card) { c.Numerics = "other" }, `"other" at worker 5 on node-5`},
		"encode, other numerics":     {engine.RoleEncode, func(c *engine.Card) { c.Numerics = "other" }, ""},
		"encode, media of the model": {engine.RoleEncode, func(c *engine.Card) { c.Media = []string{"image"} }, `["image"] at worker 5`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, servetest.Config{})
				r.cfg.Role = c.role
				r.neighbour(here, true, c.change)
				r.start(r.engine)
				if c.want == "" {
					if n := len(r.registry.Instances()); n != 2 {
						t.Errorf("%d instances: %s", n, r.log.String())
					}
					r.stop()
					return
				}
				err := <-r.ended
				r.cancel()
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("Run: %v", err)
				}
			})
		})
	}
}
