//go:build linux

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/core/pool"
	"penstock/internal/config"
	"penstock/internal/engine"
	"penstock/internal/node/engines"
	poolfile "penstock/internal/plane/xfer/pool"
)

// poolBlock is how many tokens a block of the pool has.
const poolBlock = 16

// poolFleet is a frontend and three worker processes: 1 and 2 share a pool, 3 has none.
type poolFleet struct {
	*process
	pool    string // the setting
	file    *poolfile.File
	workers map[string]*workerProcess
}

func startPoolFleet(t *testing.T) *poolFleet {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pool")
	f := &poolFleet{
		process: launch(t, config.Frontend, "nats-listen=127.0.0.1:0"), pool: "pool=7=" + path + ":32MiB", workers: map[string]*workerProcess{},
	}
	cfg := loadRole(t, config.Worker, f.pool, "nats="+f.started.NATS)
	model, err := engines.OpenLocal(t.Context(), cfg, engines.MediaSources{})
	if err != nil {
		t.Fatal(err)
	}
	layout := model.Engines[0].(engine.BlockProvider).BlockLayout()
	poolConfig := layout.PoolConfig()
	poolConfig.Lease = time.Hour // it does not end while a slow machine does not renew it
	if f.file, err = poolfile.Open(t.Context(), path, 32<<20, poolConfig); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.file.Close)
	f.join("1", f.pool)
	f.join("2", f.pool)
	f.join("3")
	f.serves("penstock-tiny", 3)
	f.eventually("two workers can attach the pool", func() bool { return f.pooled(2) >= 0 })
	return f
}

func (f *poolFleet) join(id string, settings ...string) {
	f.t.Helper()
	settings = append(settings, "nats="+f.started.NATS, "http-addr=127.0.0.1:0", "worker-id="+id)
	f.workers[id] = startWorkerProcess(f.t, settings...)
}

// pooled returns how many blocks the router knows in the pool; -1 if it does not know that so many workers can attach it.
func (f *poolFleet) pooled(workers int) int {
	f.t.Helper()
	var index struct {
		Pools []struct {
			Pool   uint32 `json:"pool_id"`
			Pooled int    `json:"pooled_blocks"`
			Access []any  `json:"accessible_workers"`
		} `json:"pools"`
	}
	f.get("/v1/router/index", &index)
	if len(index.Pools) != 1 || index.Pools[0].Pool != 7 || len(index.Pools[0].Access) != workers {
		return -1
	}
	return index.Pools[0].Pooled
}

// stored returns how many blocks are in the pool. It asks no worker.
func (f *poolFleet) stored() (n int) {
	f.t.Helper()
	if err := f.file.Use(func(p *pool.View, _ kv.Mono) error {
		n = p.Stats().Pooled
		return nil
	}); err != nil {
		f.t.Fatal(err)
	}
	return n
}

// attachable returns how many blocks of a request each worker can attach.
func (f *poolFleet) attachable(request map[string]any) map[uint64]int {
	f.t.Helper()
	_, data := f.do(http.MethodPost, "/v1/router/explain", request)
	var ex struct {
		Candidates []struct {
			WorkerID uint64 `json:"worker_id"`
			CXL      int    `json:"cxl_accessible_scores"`
		} `json:"candidates"`
	}
	if err := json.Unmarshal(data, &ex); err != nil {
		f.t.Fatalf("%v: %s", err, data)
	}
	all := map[uint64]int{}
	for _, c := range ex.Candidates {
		if c.CXL > 0 {
			all[c.WorkerID] = c.CXL
		}
	}
	return all
}

// warm has worker 1 compute a prompt, and waits until the router knows its blocks in the pool.
func (f *poolFleet) warm(request map[string]any) (first answer, blocks int) {
	f.t.Helper()
	first = f.complete("/v1/chat/completions", request, "x-worker-instance-id", "1")
	if first.status != http.StatusOK || first.worker != "1" || first.cached != 0 {
		f.t.Fatalf("%+v", first)
	}
	blocks = (first.prompt - 1) / poolBlock
	want := map[uint64]int{1: blocks, 2: blocks}
	f.eventually("the router knows the prompt in the pool", func() bool {
		got := f.attachable(request)
		return got[1] >= want[1] && got[2] >= want[2]
	})
	return first, blocks
}

func (w *workerProcess) computed() int { return w.sum("penstock_worker_computed_prompt_tokens_total") }

// TestPoolOfProcesses: what worker 1 computed and pooled before it was killed is fetched by worker 2, which the router
// chooses because it can attach the pool, and worker 3 cannot.
func TestPoolOfProcesses(t *testing.T) {
	t.Parallel()
	f := startPoolFleet(t)
	request := chat(longPrompt(1), 4)
	first, blocks := f.warm(request)
	if got := f.attachable(request); len(got) != 2 {
		t.Errorf("attachable blocks by worker: %v", got)
	}
	f.workers["1"].kill()
	f.serves("penstock-tiny", 2)
	if got := f.attachable(request); len(got) != 1 || got[2] != blocks {
		t.Errorf("attachable blocks by worker, of %d: %v", blocks, got)
	}
	second := f.complete("/v1/chat/completions", request)
	if second.worker != "2" || second.text != first.text || second.cached != blocks*poolBlock {
		t.Errorf("from the pool: %+v, computed: %+v", second, first)
	}
	if n := f.workers["2"].computed(); n != first.prompt-blocks*poolBlock {
		t.Errorf("worker 2 computed %d of %d tokens, and %d blocks are in the pool", n, first.prompt, blocks)
	}
}

// TestPoolMigration: a worker is killed in the middle of an answer. Another one with its pool goes on. Of
// prompt and answer it computes the last partial block and the blocks in transit, and the tokens are the same as without a
// failure.
func TestPoolMigration(t *testing.T) {
	t.Parallel()
	// Worker 1 answers ahead of the client, so it is killed at no chosen token: as soon as 4 blocks of the answer, about a
	// fifth of it, are in the pool. To look there takes no request.
	const length = 300
	request := chat(longPrompt(2), length)
	request["ignore_eos"], request["logprobs"] = true, true
	alone := start(t, "workers=1")
	want, err := alone.streamTokens(request, nil)
	if err != nil || len(want) != length {
		t.Fatalf("%d tokens: %v", len(want), err)
	}
	f := startPoolFleet(t)
	_, blocks := f.warm(chat(longPrompt(2), 1)) // so the router sends the request to worker 1
	atKill := 0
	got, err := f.streamTokens(request, func(n int) {
		if atKill == 0 && n > 0 && f.stored() >= blocks+4 {
			f.workers["1"].kill()
			atKill = n
		}
	})
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v: %d tokens, which differ from the %d of one worker", err, len(got), len(want))
	}
	prompt := len(f.tokens(longPrompt(2)))
	second := f.workers["2"]
	fetched, computed := second.sum("penstock_pool_fetched_total"), second.computed()
	taken := computed + fetched*poolBlock - prompt // tokens of the answer with which worker 2 began
	t.Logf("prompt %d, %d tokens were out at the kill, %d were taken over, %d blocks fetched, %d tokens computed", prompt, atKill, taken, fetched, computed)
	if n := f.sum("penstock_frontend_migrations_total", `kind="ongoing_request"`); n != 1 {
		t.Errorf("%d streams have moved with their tokens", n)
	}
	if atKill == 0 || taken < atKill || taken > len(want) {
		t.Errorf("worker 2 computed %d tokens and fetched %d blocks, of a prompt of %d and at least %d tokens of the answer", computed, fetched, prompt, atKill)
	}
	if fetched < blocks+4 {
		t.Errorf("worker 2 fetched %d blocks, of %d of the prompt and 4 of the answer which were in the pool", fetched, blocks)
	}
}

// streamTokens streams a chat completion with log-probabilities, and returns its tokens. It calls each with their number.
func (s *server) streamTokens(request map[string]any, each func(n int)) (tokens []string, err error) {
	s.t.Helper()
	request["stream"] = true
	data, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+"/v1/chat/completions", bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		chunk, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || chunk == "[DONE]" {
			continue
		}
		var c struct {
			Choices []struct {
				Logprobs struct {
					Content []struct {
						Token   string
						Logprob float64
						Bytes   []int
					}
				}
			}
			Error any
		}
		if err := json.Unmarshal([]byte(chunk), &c); err != nil || c.Error != nil {
			return tokens, fmt.Errorf("%v: %s", err, chunk)
		}
		for _, choice := range c.Choices {
			for _, l := range choice.Logprobs.Content {
				tokens = append(tokens, fmt.Sprint(l.Token, l.Bytes, l.Logprob))
			}
		}
		if each != nil {
			each(len(tokens))
		}
	}
	return tokens, lines.Err()
}
