//go:build linux

package e2e

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

// startPoolFleet starts such processes, with settings of worker 1.
func startPoolFleet(t *testing.T, settings ...string) *poolFleet {
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
	f.join("1", append(settings, f.pool)...)
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
	f.eventually("worker 2 alone can attach the blocks", func() bool { return maps.Equal(f.attachable(request), map[uint64]int{2: blocks}) })
	second := f.complete("/v1/chat/completions", request)
	if second.worker != "2" || second.text != first.text || second.cached != blocks*poolBlock {
		t.Errorf("from the pool: %+v, computed: %+v", second, first)
	}
	if n := f.workers["2"].computed(); n != first.prompt-blocks*poolBlock {
		t.Errorf("worker 2 computed %d of %d tokens, and %d blocks are in the pool", n, first.prompt, blocks)
	}
}

// answerLimit passes connections of the request plane on to a server. From limitAnswers on it drops the answers of calls
// after a number of bytes.
type answerLimit struct {
	net.Listener
	to      string
	limited atomic.Bool
	left    atomic.Int64 // bytes which still pass, if limited
	ended   chan struct{}
	cut     func() // ends all connections; may be called again
}

// openAnswerLimit returns one for a server which listens at to later: the same port of another address of this machine,
// where no port is picked at random.
func openAnswerLimit(t *testing.T) *answerLimit {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	to := fmt.Sprint("127.0.0.2:", listener.Addr().(*net.TCPAddr).Port)
	l := &answerLimit{Listener: listener, to: to, ended: make(chan struct{})}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", l.to)
			if err != nil {
				_ = in.Close()
				continue
			}
			end := sync.OnceFunc(func() { _, _ = in.Close(), out.Close() })
			running.Go(func() { defer end(); _, _ = io.Copy(out, in) })
			running.Go(func() { defer end(); l.passAnswers(in, out) })
			running.Go(func() { defer end(); <-l.ended })
		}
	})
	l.cut = sync.OnceFunc(func() { close(l.ended) })
	t.Cleanup(func() {
		_ = l.Close()
		l.cut()
		running.Wait()
	})
	return l
}

// passAnswers copies the frames of docs/format/rpc.md until the limit. Beyond it, it drops the frames of answers and
// still copies the others, such as PONG, so that the connection stays alive.
func (l *answerLimit) passAnswers(to io.Writer, from io.Reader) {
	in := bufio.NewReader(from)
	before, sum := len("penstock"), 0 // HELLO has no checksums
	for {
		head, err := in.Peek(before + 8)
		if err != nil {
			return
		}
		payload, kind := int(binary.LittleEndian.Uint32(head[before:])&0xffffff), head[before+3]
		size := before + 8 + sum + payload
		if payload > 0 {
			size += sum
		}
		passing := to
		if isAnswer := kind >= 6 && kind <= 9; isAnswer && l.limited.Load() && l.left.Add(-int64(size)) < 0 { // DATA to END
			passing = io.Discard
		}
		if _, err := io.CopyN(passing, in, int64(size)); err != nil {
			return
		}
		before, sum = 0, 4
	}
}

// limitAnswers lets so many bytes pass from now on.
func (l *answerLimit) limitAnswers(bytes int64) {
	l.left.Store(bytes)
	l.limited.Store(true)
}

// TestPoolMigration: a worker is killed in the middle of an answer. Another one with its pool goes on. Of
// prompt and answer it computes the last partial block, and the tokens are the same as without a failure.
func TestPoolMigration(t *testing.T) {
	t.Parallel()
	// Worker 1 answers ahead of the client, so it is not killed at a chosen token: only the beginning of its answer arrives,
	// which is less than a third, also if many tokens are in one frame. It is killed when all blocks are in the pool.
	const length, passing = 300, 2400
	request := chat(longPrompt(2), length)
	request["ignore_eos"], request["logprobs"] = true, true
	alone := start(t, "workers=1")
	want, err := alone.streamTokens(request)
	if err != nil || len(want) != length {
		t.Fatalf("%d tokens: %v", len(want), err)
	}
	answers := openAnswerLimit(t)
	f := startPoolFleet(t, "rpc-addr="+answers.to, "rpc-advertise="+answers.Addr().String())
	f.warm(chat(longPrompt(2), 1)) // so the router sends the request to worker 1
	prompt := len(f.tokens(longPrompt(2)))
	answers.limitAnswers(passing)
	ended := make(chan error, 1)
	var got []string
	go func() {
		var err error
		got, err = f.streamTokens(request)
		ended <- err
	}()
	f.eventually("prompt and answer are in the pool", func() bool { return f.stored() >= (prompt+length-1)/poolBlock })
	if len(ended) > 0 {
		t.Error("the whole answer has arrived")
	}
	f.workers["1"].kill()
	answers.cut()
	if err := <-ended; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v: %d tokens, which differ from the %d of one worker", err, len(got), len(want))
	}
	second := f.workers["2"]
	fetched, computed := second.sum("penstock_pool_fetched_total"), second.computed()
	taken := computed + fetched*poolBlock - prompt // tokens of the answer with which worker 2 began
	t.Logf("prompt %d, %d tokens were taken over, %d blocks fetched, %d tokens computed", prompt, taken, fetched, computed)
	if n := f.sum("penstock_frontend_migrations_total", `kind="ongoing_request"`); n != 1 {
		t.Errorf("%d streams have moved with their tokens", n)
	}
	if taken < 1 || taken >= length {
		t.Errorf("worker 2 computed %d tokens and fetched %d blocks, of a prompt of %d and a part of the answer", computed, fetched, prompt)
	}
	if all := (prompt + taken - 1) / poolBlock; fetched != all {
		t.Errorf("worker 2 fetched %d blocks of the %d which are full", fetched, all)
	}
}

// streamTokens streams a chat completion with log-probabilities, and returns its tokens.
func (s *server) streamTokens(request map[string]any) (tokens []string, err error) {
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
	}
	return tokens, lines.Err()
}
