package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/zmtp"
)

const (
	blockSize        = 16
	blocksPerEvent   = 32  // blocks per stored event
	promptsPerEngine = 256 // prompts in an engine's cache: 8,192 blocks
	replayBatches    = 10000
)

// enginePublisher is one engine as a router sees it: the HTTP API as far as startup needs it, and a PUB
// socket which sends pre-encoded batches. Batch n stores prompt n of a round and, from the second round on,
// removes it first, so that the cache stays full.
type enginePublisher struct {
	url     string
	events  zmtp.Endpoint
	pub     *zmtp.Pub
	first   [][]byte // batches of the first round
	later   [][]byte // batches of the other rounds
	next    uint64   // sequence number
	counted atomic.Uint64
}

// appendHead appends the head of a msgpack array, map or string of n elements.
func appendHead(dst []byte, fix, of16 byte, n int) []byte {
	if n < 16 {
		return append(dst, fix|byte(n))
	}
	return binary.BigEndian.AppendUint16(append(dst, of16), uint16(n))
}

func appendText(dst []byte, s string) []byte {
	return append(append(dst, 0xa0|byte(len(s))), s...)
}

func appendUint(dst []byte, v uint64) []byte {
	switch {
	case v < 128:
		return append(dst, byte(v))
	case v <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, 0xcd), uint16(v))
	case v <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(dst, 0xce), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(dst, 0xcf), v)
}

// mixHash is a hash of a block's name, as arbitrary as an engine's.
func mixHash(v uint64) uint64 {
	v ^= v >> 30
	v *= 0xbf58476d1ce4e5b9
	v ^= v >> 27
	v *= 0x94d049bb133111eb
	return v ^ v>>31
}

func blockHashes(engine, prompt int) []uint64 {
	all := make([]uint64, blocksPerEvent)
	for i := range all {
		all[i] = mixHash(uint64(engine+1)<<40 | uint64(prompt)<<16 | uint64(i))
	}
	return all
}

// encodeBatch encodes an engine's events of a prompt, in the format of vLLM since 0.24: every second prompt
// is common to all engines.
func encodeBatch(engine, prompt int, removed bool) []byte {
	b := append([]byte{0x93, 0xcb}, 0x41, 0xda, 0xbb, 0, 0, 0, 0, 0) // an arbitrary timestamp
	events := 1
	if removed {
		events = 2
	}
	b = appendHead(b, 0x90, 0xdc, events)
	names := blockHashes(engine, prompt)
	if removed {
		b = appendHead(b, 0x80, 0xde, 3)
		b = appendText(appendText(b, "type"), "BlockRemoved")
		b = appendHead(appendText(b, "block_hashes"), 0x90, 0xdc, len(names))
		for _, h := range names {
			b = appendUint(b, h)
		}
		b = appendText(appendText(b, "medium"), "GPU")
	}
	b = appendHead(b, 0x80, 0xde, 10)
	b = appendText(appendText(b, "type"), "BlockStored")
	b = appendHead(appendText(b, "block_hashes"), 0x90, 0xdc, len(names))
	for _, h := range names {
		b = appendUint(b, h)
	}
	b = append(appendText(b, "parent_block_hash"), 0xc0)
	b = appendHead(appendText(b, "token_ids"), 0x90, 0xdc, blocksPerEvent*blockSize)
	seed := uint64(prompt)
	if prompt%2 == 1 {
		seed |= uint64(engine+1) << 32
	}
	for i := range blocksPerEvent * blockSize {
		b = appendUint(b, mixHash(seed<<10|uint64(i))%128000)
	}
	b = appendUint(appendText(b, "block_size"), blockSize)
	b = append(appendText(b, "lora_id"), 0xc0)
	b = appendText(appendText(b, "medium"), "GPU")
	b = append(appendText(b, "lora_name"), 0xc0)
	b = append(appendText(b, "group_idx"), 0)
	b = appendText(appendText(b, "kv_cache_spec_kind"), "full_attention")
	return append(b, 0)
}

func newEnginePublisher(ctx context.Context, engine int, model string) (*enginePublisher, error) {
	ep, err := zmtp.ParseEndpoint("tcp://127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &enginePublisher{}
	if p.pub, err = zmtp.ListenPub(ep, zmtp.Options{HighWater: 100000, QueueBytes: 1 << 30}); err != nil {
		return nil, err
	}
	p.events = p.pub.Addr()
	for i := range promptsPerEngine {
		p.first = append(p.first, encodeBatch(engine, i, false))
		p.later = append(p.later, encodeBatch(engine, i, true))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p.url = "http://" + l.Addr().String()
	srv := &http.Server{Handler: newEngineAPI(model), ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = srv.Close() })
	go func() { _ = srv.Serve(l) }()
	return p, nil
}

// newEngineAPI answers the requests of an adapter at startup and afterwards.
func newEngineAPI(model string) http.Handler {
	mux := http.NewServeMux()
	text := func(s string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) }
	}
	const first = `{"id":"cmpl-1","object":"text_completion","created":1,"model":"bench","choices":[{"index":0,"text":"a","finish_reason":"length","token_ids":[5]}]`
	const usage = `"usage":{"prompt_tokens":4,"total_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}}`
	mux.HandleFunc("GET /health", text(""))
	mux.HandleFunc("GET /version", text(`{"version":"0.24.0"}`))
	mux.HandleFunc("GET /v1/models", text(fmt.Sprintf(`{"object":"list","data":[{"id":"bench","object":"model","created":1,"owned_by":"vllm","root":%q,"parent":null,"max_model_len":8192}]}`, model)))
	mux.HandleFunc("GET /metrics", text(`vllm:num_requests_running{engine="0",model_name="bench"} 0.0
vllm:num_requests_waiting{engine="0",model_name="bench"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="bench"} 0.0
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="16384"} 1.0
`))
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Stream bool `json:"stream"`
		}
		_ = json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&q)
		if !q.Stream {
			_, _ = io.WriteString(w, first+","+usage)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: "+first+"}\n\ndata: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"choices\":[],"+usage+"\n\ndata: [DONE]\n\n")
	})
	return mux
}

// publishNext publishes the next batch. Only one goroutine calls it.
func (p *enginePublisher) publishNext() {
	round, i := p.next/promptsPerEngine, p.next%promptsPerEngine
	payload, events := p.later[i], uint64(2)
	if round == 0 {
		payload, events = p.first[i], 1
	}
	p.pub.Send(nil, binary.BigEndian.AppendUint64(nil, p.next), payload)
	p.next++
	p.counted.Add(events)
}

// publisherGroup is the work of one process of engines: it publishes at the last commanded rate.
type publisherGroup struct {
	all  []*enginePublisher
	stop func()
}

// publishAtRate publishes rate batches a second over all engines, until stop is called.
func (s *publisherGroup) publishAtRate(rate float64) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		const every = 2 * time.Millisecond
		tick := time.NewTicker(every)
		defer tick.Stop()
		began, sent, turn := time.Now(), 0, 0
		for {
			select {
			case <-tick.C:
			case <-done:
				return
			}
			for due := int(time.Since(began).Seconds() * rate); sent < due; sent++ {
				s.all[turn%len(s.all)].publishNext()
				turn++
			}
		}
	})
	s.stop = func() { close(done); wg.Wait() }
}

// runEngines is the engine role: it answers each line "rate N" and "stop" with a line of its counts.
func runEngines(n int, model string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := &publisherGroup{}
	var where []string
	for i := range n {
		p, err := newEnginePublisher(ctx, i, model)
		if err != nil {
			return err
		}
		defer p.pub.Close()
		s.all = append(s.all, p)
		where = append(where, "vllm="+p.url+",events="+p.events.String())
	}
	fmt.Println(strings.Join(where, " "))
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if s.stop != nil {
			s.stop()
			s.stop = nil
		}
		if word, arg, _ := strings.Cut(in.Text(), " "); word == "rate" {
			rate, err := strconv.ParseFloat(arg, 64)
			if err != nil {
				return err
			}
			s.publishAtRate(rate)
		}
		var said engineCounts
		for _, p := range s.all {
			said.Events += p.counted.Load()
			said.Dropped += p.pub.Dropped()
			said.Subscribers += p.pub.Subscribers()
		}
		b, err := json.Marshal(said)
		if err != nil {
			return err
		}
		fmt.Println(string(b))
	}
	return nil
}

// engineCounts is the engines' answer.
type engineCounts struct {
	Events      uint64 `json:"events"`      // published so far, of 32 blocks each
	Dropped     uint64 `json:"dropped"`     // batches which a subscriber was too slow for
	Subscribers int    `json:"subscribers"` // connected
}
