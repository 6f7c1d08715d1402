package router_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/dispatch"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
	"penstock/internal/serve/router"
	"penstock/internal/serve/servetest"
)

// routerCard is the card of router processes.
func routerCard() []byte {
	card := servetest.ModelCard("m")
	card.Router, card.KVEvents = true, false
	b, err := engine.EncodeCard(card)
	if err != nil {
		panic(err)
	}
	return b
}

// startRouterProcess registers a router process which only answers inspect and pings.
func (c *cluster) startRouterProcess(id kv.WorkerID, inspect func(context.Context, *engine.Inspection) ([]byte, error)) (stop func()) {
	c.t.Helper()
	addr := fmt.Sprint("router-", id)
	stop = c.run(addr, func(ctx context.Context) error {
		return c.rpc.Serve(ctx, addr, func(ctx context.Context, method string, body []byte, send func([]byte) error) error {
			if method != engine.MethodInspect || inspect == nil {
				return fault.New(fault.Unimplemented, "not %s", method)
			}
			q, err := engine.DecodeInspection(body)
			if err != nil {
				return err
			}
			answer, err := inspect(ctx, q)
			if err != nil {
				return err
			}
			return engine.SendInspectionFrames(answer, send)
		}, nil)
	})
	c.registry.Set(disco.Instance{
		Kind: disco.KindWorker, ID: id, Epoch: 1, Namespace: "penstock", Component: "backend", Addr: addr, Host: "host", PID: int(id), Meta: routerCard(),
	})
	synctest.Wait()
	return stop
}

// call posts to the router API.
func (c *cluster) call(path, body string) (status int, answer []byte) {
	rec := httptest.NewRecorder()
	c.router.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
	return rec.Code, rec.Body.Bytes()
}

// TestBehind: the answers of router processes are part of the answers of the router in front of them;
// one that fails does not affect the others.
func TestBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{Route: route.Config{Mode: route.RoundRobin}})()
		var asked []engine.Inspection
		for id, inspect := range map[kv.WorkerID]func(context.Context, *engine.Inspection) ([]byte, error){
			1: func(_ context.Context, q *engine.Inspection) ([]byte, error) {
				asked = append(asked, *q)
				return []byte(`{"rows":[{"worker_id":7,"model":"m"}]}`), nil
			},
			2: nil, // an earlier version
			3: func(ctx context.Context, _ *engine.Inspection) ([]byte, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			},
			4: func(context.Context, *engine.Inspection) ([]byte, error) { return []byte(`{"rows":`), nil },
			5: func(context.Context, *engine.Inspection) ([]byte, error) {
				return nil, fault.New(fault.Overloaded, "too many questions")
			},
			6: func(context.Context, *engine.Inspection) ([]byte, error) {
				return bytes.Repeat([]byte(" "), 33<<20), nil
			},
		} {
			defer c.startRouterProcess(id, inspect)()
		}
		began := time.Now()
		var table struct {
			Rows []struct {
				ID     uint64 `json:"worker_id"`
				Role   string
				Addr   string
				Behind []struct {
					ID uint64 `json:"worker_id"`
				}
				BehindError string `json:"behind_error"`
			}
		}
		c.get("/v1/router/workers", &table)
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("a router that does not answer held up the others for %v", took)
		}
		for i, want := range []string{"", "same version", "did not answer within 3s", "not whole", "too many questions", "at most"} {
			row := table.Rows[i]
			if want == "" && (len(row.Behind) != 1 || row.Behind[0].ID != 7) || want != "" && row.Behind != nil ||
				row.Role != "router" || row.Addr != fmt.Sprint("router-", row.ID) || !strings.Contains(row.BehindError, want) || want == "" && row.BehindError != "" {
				t.Errorf("router %d: %+v, want %q", i+1, row, want)
			}
		}

		// A question about a prompt arrives in the form of the request.
		asked = nil
		status, answer := c.call("/v1/router/explain", `{"model":"m","token_ids":[1,2,3],"cache_salt":"s","nvext":{"allowed_worker_ids":[7],"session_control":{"session_id":"x"}}}`)
		if status != http.StatusOK || len(asked) != 1 || strings.Count(string(answer), `"router":`) != 6 {
			t.Fatalf("%d %s, asked %+v", status, answer, asked)
		}
		var sent engine.Request
		var wishes route.Request
		if err := engine.DecodeRequest(asked[0].Request, &sent); err != nil {
			t.Fatal(err)
		}
		if err := dispatch.ApplyHints(sent.Hints, &wishes); err != nil || len(sent.Prompt) != 3 || sent.Salt.Namespace != "s" || len(wishes.Allowed) != 1 || wishes.Session.ID != "x" ||
			asked[0].Call != engine.InspectExplain || asked[0].Model != "m" {
			t.Errorf("%+v, %+v, %v", sent, wishes, err)
		}
		// Nested routers are asked too, up to maxDepth.
		if d := asked[0].Depth; d != 2 {
			t.Errorf("the question may go on through %d routers", d)
		}
		// A depth below zero is exhausted: routers may form a cycle.
		asked = nil
		for _, call := range []string{engine.InspectWorkers, engine.InspectLoads} {
			body := engine.AppendRequest(nil, &engine.Request{ID: "q", Attempt: 1, Prompt: prompt(0, 8, 1), Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: 1}})
			if _, err := c.router.Inspect(t.Context(), &engine.Inspection{Call: call, Model: "m", Request: body, Depth: -1}); err != nil || asked != nil {
				t.Errorf("%s with a depth of -1: asked %+v, %v", call, asked, err)
			}
		}
		if status, answer := c.call("/v1/router/potential_loads", `{"model":"m","token_ids":[1,2,3]}`); status != http.StatusOK || strings.Count(string(answer), `"behind"`) != 1 || strings.Count(string(answer), `"behind_error"`) != 5 {
			t.Errorf("%d %s", status, answer)
		}
	})
}

// TestInspect: a router answers the questions of routers in front of it like its API.
func TestInspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{})()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		c.startWorker(2, 1)
		ctx := t.Context()
		if _, err := c.router.Route(ctx, &route.Request{ID: "a", Attempt: 1, Model: "m", Tokens: prompt(0, 8, 1)}); err != nil {
			t.Fatal(err)
		}
		c.router.FreeReservation("a", 1, 0)
		body := engine.AppendRequest(nil, &engine.Request{ID: "q", Attempt: 1, Prompt: prompt(0, 8, 1), Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: 1}})
		for _, tt := range []struct {
			q    engine.Inspection
			want string
			code fault.Code
		}{
			{engine.Inspection{Call: engine.InspectWorkers, Model: "m"}, `"worker_id":2`, 0},
			{engine.Inspection{Call: engine.InspectWorkers, Model: "other"}, `{"rows":[]}`, 0},
			{engine.Inspection{Call: engine.InspectExplain, Model: "m", Request: body}, `"candidates":[{"worker_id":1`, 0},
			{engine.Inspection{Call: engine.InspectBestWorker, Model: "m", Request: body}, `{"worker_id":`, 0},
			{engine.Inspection{Call: engine.InspectLoads, Model: "m", Request: body}, `[{"worker_id":1`, 0},
			{engine.Inspection{Call: engine.InspectDecisions, Model: "m", RequestID: "a"}, `"request_id":"a","model":"m"`, 0},
			{engine.Inspection{Call: engine.InspectDecisions, Model: "other", RequestID: "a"}, "", fault.NotFound},
			{engine.Inspection{Call: engine.InspectDecisions, Model: "m", RequestID: "b"}, "", fault.NotFound},
			{engine.Inspection{Call: engine.InspectExplain, Model: "other", Request: body}, "", fault.NotFound},
			{engine.Inspection{Call: engine.InspectExplain, Model: "m"}, "", fault.Invalid},
			{engine.Inspection{Call: "flush"}, "", fault.Unimplemented},
		} {
			answer, err := c.router.Inspect(ctx, &tt.q)
			if err != nil && fault.CodeOf(err) != tt.code || err == nil && (!json.Valid(answer) || tt.want == "" || !strings.Contains(string(answer), tt.want)) {
				t.Errorf("%+v: %s, %v", tt.q, answer, err)
			}
		}
	})
}
