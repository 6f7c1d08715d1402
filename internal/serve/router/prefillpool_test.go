package router_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine"
	"penstock/internal/serve/router"
	"penstock/internal/serve/servetest"
)

// TestPrefillPool: prefill workers with a connector are chosen among for prefill legs alone, by what their caches
// have and by their load, each with reservations of its own; the others are not.
func TestPrefillPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		start := func(id kv.WorkerID, role engine.Role, connector engine.KVConnector) {
			card := servetest.ModelCard("m")
			card.Role, card.KVConnector = role, connector
			c.startWorkerOf(id, 1, card)
		}
		start(1, engine.RoleDecode, engine.NIXLConnector)
		defer c.startRouter(router.Config{})()
		ask := func(id string, role route.WorkerRole, tokens []kv.Token, exclude ...kv.WorkerID) (kv.WorkerID, error) {
			d, err := c.router.Route(t.Context(), &route.Request{ID: id, Attempt: 1, Model: "m", Role: role, Tokens: tokens, Exclude: exclude})
			return d.Worker.ID, err
		}
		if _, err := ask("none", route.PrefillWorkers, prompt(0, 64, 1)); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("without prefill workers: %v", err)
		}
		start(2, engine.RolePrefill, engine.NIXLConnector)
		start(3, engine.RolePrefill, engine.NIXLConnector)
		start(4, engine.RolePrefill, "")
		defer func() { c.stops[4]() }()
		defer c.stopWorkers()

		seen := map[kv.WorkerID]int{}
		for i := range 4 {
			id, err := ask(fmt.Sprint("load", i), route.PrefillWorkers, prompt(1000*i, 64, 1))
			if err != nil {
				t.Fatal(err)
			}
			seen[id]++
		}
		if seen[2] != 2 || seen[3] != 2 {
			t.Errorf("four prompts went to %v", seen)
		}
		for i := range 4 {
			c.router.FreeReservation(fmt.Sprint("load", i), 1, 1)
		}
		if id, err := ask("whole", route.ServingWorkers, prompt(0, 64, 1)); id != 1 || err != nil {
			t.Errorf("a whole request went to %d, %v", id, err)
		}
		c.router.FreeReservation("whole", 1, 0)

		// One of them has the prompt.
		tokens := prompt(9000, 64, 1)
		body := engine.AppendRequest(nil, &engine.Request{ID: "x", Attempt: 1, Model: "m", Prompt: tokens, Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: 1}, Leg: engine.LegPrefill})
		addr := ""
		for _, in := range c.registry.Instances() {
			if in.ID == 3 {
				addr = in.Addr
			}
		}
		if err := c.rpc.Call(t.Context(), addr, engine.MethodGenerate, body, func([]byte) error { return nil }); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for i := range 3 {
			name := fmt.Sprint("hit", i)
			if id, err := ask(name, route.PrefillWorkers, tokens); id != 3 || err != nil {
				t.Errorf("the prompt which worker 3 has went to %d, %v", id, err)
			}
			c.router.FreeReservation(name, 1, 1)
		}
		if id, err := ask("pin", route.PrefillWorkers, tokens, 3); id != 2 || err != nil {
			t.Errorf("without worker 3 it went to %d, %v", id, err)
		}
		c.stops[2]()
		c.stops[3]()
		delete(c.stops, 2)
		delete(c.stops, 3)
		if _, err := ask("gone", route.PrefillWorkers, tokens); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("after the last prefill worker: %v", err)
		}
		if id, err := ask("still", route.ServingWorkers, tokens); id != 1 || err != nil {
			t.Errorf("a whole request went to %d, %v", id, err)
		}
	})
}
