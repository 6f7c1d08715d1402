package doctor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock/internal/enginemock/enginemocktest"
	"penstock/internal/node/engines"

	"penstock/internal/config"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/engine"
	"penstock/internal/enginemock"
	"penstock/internal/zmtp"
)

// TestExamineEngines: one finding for each fact about a remote engine, before or beside the process that
// serves it.
func TestExamineEngines(t *testing.T) {
	dir := enginemocktest.WriteCheckpoint(t, `{"vocab_size": 2048}`, "")
	a, b := enginemocktest.StartFakeEngine(t, "m", dir), enginemocktest.StartFakeEngine(t, "m", "org/model")
	down := enginemocktest.StartFakeEngine(t, "m", dir)
	down.Loading.Store(true)
	free, err := zmtp.ParseEndpoint("tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	events, err := zmtp.ListenPub(free, zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	s := &enginemocktest.Stubs{Change: func(of *config.RemoteEngine, s *enginemocktest.StubAdapter) {
		if of.URL.String() == b.URL {
			s.ReportedCard.KVPredicted = true
			s.Problems = []engine.Warning{{Code: engine.WarnNoCachedTokens, Detail: "no cached tokens are reported", Remedy: "start it with the flag"}}
		}
	}}
	d := &examiner{
		cfg: enginemocktest.LoadSettings(t, config.Up, fmt.Sprintf("ENGINE=vllm=%s,events=tcp://%s,replay=tcp://127.0.0.1:1,vllm=%s,sglang=%s,trtllm=%s/x", a.URL, strings.TrimPrefix(events.Addr().String(), "tcp://"), b.URL, down.URL, a.URL)),
		log: slog.New(slog.DiscardHandler), openAdapter: openerOf(s),
	}
	d.checkEngines(t.Context())
	checkFinding(t, d.findings, "engine vllm="+a.URL, CheckOK, "vllm serves m")
	checkFinding(t, d.findings, "replay of vllm="+a.URL, CheckFail, "connection refused")
	checkFinding(t, d.findings, "tokenizer of vllm="+a.URL, CheckOK, dir)
	checkFinding(t, d.findings, "adapter of vllm="+a.URL, CheckOK, "m with 256 blocks of 16 tokens")
	checkFinding(t, d.findings, "events of vllm="+a.URL, CheckOK, "followed for 2s")
	checkFinding(t, d.findings, "tokenizer of vllm="+b.URL, CheckWarn, "org/model")
	checkFinding(t, d.findings, "events of vllm="+b.URL, CheckWarn, "guessed")
	checkFinding(t, d.findings, "no_cached_tokens of vllm="+b.URL, CheckWarn, "no cached tokens are reported")
	checkFinding(t, d.findings, "engine sglang="+down.URL, CheckFail, "loading (503)")
	checkFinding(t, d.findings, "engine trtllm="+a.URL+"/x", CheckFail, "is the path of the URL right")
}

// TestExamineBadTokenizers: the remedy for an unusable tokenizer differs from what failed, and works.
func TestExamineBadTokenizers(t *testing.T) {
	damaged, odd := enginemocktest.WriteCheckpoint(t, `{"vocab_size": 2048`, ""), enginemocktest.WriteCheckpoint(t, "", "")
	if err := os.WriteFile(filepath.Join(odd, "tokenizer.json"), []byte(`{"model":{"type":"Sorcery"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	a, b := enginemocktest.StartFakeEngine(t, "m", "org/model"), enginemocktest.StartFakeEngine(t, "m", odd)
	for _, c := range []struct{ engine, status, detail, remedy string }{
		{a.URL + ",model-path=" + damaged, CheckFail, damaged + ": checkpoint config.json: ", "mode=pass"},
		{a.URL + ",model-path=" + odd, CheckFail, "name another directory with --model-path", "mode=pass"},
		{a.URL + ",mode=pass", CheckOK, "engine", ""},
		{b.URL, CheckWarn, "the tokenizer in " + odd + " cannot be used", "repair the file, or name a directory with a converted tokenizer"},
	} {
		d := &examiner{cfg: enginemocktest.LoadSettings(t, config.Up, "ENGINE=vllm="+c.engine), log: slog.New(slog.DiscardHandler), openAdapter: openerOf(&enginemocktest.Stubs{})}
		d.checkEngines(t.Context())
		at, _, _ := strings.Cut(c.engine, ",")
		checkFinding(t, d.findings, "tokenizer of vllm="+at, c.status, c.detail)
		if f := findFinding(t, d.findings, "tokenizer of vllm="+at); !strings.Contains(f.Remedy, c.remedy) {
			t.Errorf("%s: the remedy is %q", c.engine, f.Remedy)
		}
	}
}

// askingAdapter finds a problem of its engine by a question.
type askingAdapter struct{ *enginemocktest.StubAdapter }

// AwaitStartChecks implements engine.StartChecker.
func (a askingAdapter) AwaitStartChecks(context.Context) {
	a.Problems = append(a.Problems, engine.Warning{Code: engine.WarnSaltsRefused, Detail: "requests with cache_salt are refused", Remedy: "take another engine"})
}

// TestExamineAwaitsAnswers: the doctor reports what an adapter finds out by asking its engine.
func TestExamineAwaitsAnswers(t *testing.T) {
	a := enginemocktest.StartFakeEngine(t, "m", enginemocktest.WriteCheckpoint(t, `{"vocab_size": 2048}`, ""))
	open := openerOf(&enginemocktest.Stubs{})
	d := &examiner{
		cfg: enginemocktest.LoadSettings(t, config.Up, "ENGINE=vllm="+a.URL), log: slog.New(slog.DiscardHandler),
		openAdapter: func(ctx context.Context, of *config.RemoteEngine, rank, ranks int, key string, m *engines.RemoteModel, log *slog.Logger) (engine.Engine, error) {
			e, err := open(ctx, of, rank, ranks, key, m, log)
			return askingAdapter{e.(*enginemocktest.StubAdapter)}, err
		},
	}
	d.checkEngines(t.Context())
	checkFinding(t, d.findings, "cache_salts_refused of vllm="+a.URL, CheckWarn, "requests with cache_salt are refused")
}

// TestExamineWrongPorts: an endpoint which is not a publisher, or not a replay router, is a failure, and its
// events do not count as followed.
func TestExamineWrongPorts(t *testing.T) {
	dir := enginemocktest.WriteCheckpoint(t, `{"vocab_size": 2048}`, "")
	a := enginemocktest.StartFakeEngine(t, "m", dir)
	free, err := zmtp.ParseEndpoint("tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	publisher, err := zmtp.ListenPub(free, zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer publisher.Close()
	router, err := zmtp.ListenRouter(free, zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	for _, c := range []struct {
		name           string
		events, replay zmtp.Endpoint
		wrong          []string
	}{
		{"as they should be", publisher.Addr(), router.Addr(), nil},
		{"one for the other", router.Addr(), publisher.Addr(), []string{"events", "replay"}},
		{"one for both", publisher.Addr(), publisher.Addr(), []string{"replay"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &examiner{
				cfg: enginemocktest.LoadSettings(t, config.Up, fmt.Sprintf("ENGINE=vllm=%s,events=%s,replay=%s", a.URL, c.events, c.replay)),
				log: slog.New(slog.DiscardHandler),
			}
			of := d.cfg.RemoteEngines()[0]
			got := d.checkEndpoints(t.Context(), &of, 1)
			if (got == eventsUnreached) != slices.Contains(c.wrong, "events") || len(d.findings) != len(c.wrong) {
				t.Errorf("%v: %+v", got, d.findings)
			}
			for _, name := range c.wrong {
				checkFinding(t, d.findings, name+" of vllm="+a.URL, CheckFail, "cannot be followed")
			}
		})
	}
}

// TestExamineUnheardEngines: an adapter that receives no events has not followed them, even if the engine
// itself announced their address.
func TestExamineUnheardEngines(t *testing.T) {
	a := enginemocktest.StartFakeEngine(t, "m", enginemocktest.WriteCheckpoint(t, `{"vocab_size": 2048}`, ""))
	s := &enginemocktest.Stubs{Change: func(_ *config.RemoteEngine, s *enginemocktest.StubAdapter) { s.Unheard = true }}
	d := &examiner{cfg: enginemocktest.LoadSettings(t, config.Up, "ENGINE=sglang="+a.URL+",model-path="+enginemocktest.WriteCheckpoint(t, `{"vocab_size": 2048}`, "")), log: slog.New(slog.DiscardHandler), openAdapter: openerOf(s)}
	d.checkEngines(t.Context())
	checkFinding(t, d.findings, "events of sglang="+a.URL, CheckFail, "no connection could carry them")
}

// openerOf opens the adapters of stubs.
func openerOf(s *enginemocktest.Stubs) engines.AdapterOpener {
	return func(_ context.Context, of *config.RemoteEngine, rank, ranks int, _ string, m *engines.RemoteModel, _ *slog.Logger) (engine.Engine, error) {
		return s.OpenStub(of, rank, ranks, m.Ref)
	}
}

// TestExamineMimic: the doctor finds nothing wrong with a vLLM mock, and a problem if its events are off.
func TestExamineMimic(t *testing.T) {
	dir := enginemocktest.WriteCheckpoint(t, `{"vocab_size": 4096, "max_position_embeddings": 4096}`, "")
	spec, _ := enginemocktest.StartEngineMock(t, enginemock.VLLM, dir, nil)
	silentSpec, _ := enginemocktest.StartEngineMock(t, enginemock.VLLM, dir, func(c *enginemock.Config) { c.KVEvents, c.KVReplay, c.Features.Details = "", "", enginemock.Off })
	found := Examine(t.Context(), Examination{Config: enginemocktest.LoadSettings(t, config.Up, "ENGINE="+spec+","+silentSpec, "HTTP_ADDR=127.0.0.1:0")})
	of, _, _ := strings.Cut(spec, ",")
	checkFinding(t, found, "engine "+of, CheckOK, "serves m")
	checkFinding(t, found, "tokenizer of "+of, CheckOK, dir)
	checkFinding(t, found, "adapter of "+of, CheckOK, "m with 512 blocks of 16 tokens, 1 data-parallel ranks")
	checkFinding(t, found, "events of "+of, CheckOK, "followed for")
	checkNoFinding(t, found, "no_kv_events of "+of)
	checkFinding(t, found, "events of "+silentSpec, CheckWarn, "guessed")
	checkFinding(t, found, "no_kv_events of "+silentSpec, CheckWarn, "")
	checkNoFinding(t, found, "memory")
}

// TestExamineProducer: a vLLM which encodes media for others has no cache to follow.
func TestExamineProducer(t *testing.T) {
	pipe, err := chat.Open(chat.Ref{Kind: "builtin"})
	if err != nil {
		t.Fatal(err)
	}
	dir := enginemocktest.WriteCheckpoint(t, `{"vocab_size": 4096, "max_position_embeddings": 4096}`, "")
	_, s := enginemocktest.StartEngineMock(t, enginemock.VLLM, dir, func(c *enginemock.Config) {
		c.Pipe, c.Root, c.ECRole, c.ECStore = pipe, "penstock-sim", enginemock.ECProducer, t.TempDir()
	})
	for role, want := range map[string]string{"producer": CheckOK, "consumer": CheckFail} {
		d := &examiner{
			cfg: enginemocktest.LoadSettings(t, config.Up, "ENGINE=vllm="+s.URL()+",ec-role="+role),
			log: slog.New(slog.DiscardHandler), openAdapter: engines.OpenAdapter,
		}
		d.checkEngines(t.Context())
		says := "m encodes audio, image, video for others"
		if role == "consumer" {
			says = "--role encode"
		}
		checkFinding(t, d.findings, "adapter of vllm="+s.URL(), want, says)
		if len(d.findings) != 3 {
			t.Errorf("%s: %+v", role, d.findings)
		}
	}
}
