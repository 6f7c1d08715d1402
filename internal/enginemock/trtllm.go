package enginemock

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"penstock/core/kv"
	"penstock/internal/engine"
)

// newTRTLLM returns the dialect of TensorRT-LLM.
func newTRTLLM() *dialect {
	return &dialect{
		addRoutes: (*Server).routeTRTLLM, errorBody: flatError, errorTypes: webErrors(), otherError: "InternalServerError",
		message: object{"tool_calls": []object{}}, addChoice: addTRTChoice, addWhole: (*Server).addContextParams,
		transfer:  (*Server).contextTransfer,
		showMedia: func(s *Server, _ kv.Token, _ uint64) kv.Token { return kv.Token(s.card.VocabSize) + 1 },
		mapEvents: true, replayTopics: true, extraFields: trtFields, pulls: true, hostMedium: "CPU", diskMedium: "DISK",
	}
}

// addTRTChoice adds what stopped a choice, and its tokens instead of its text on request.
func addTRTChoice(c *apiCall, o object, p *outputPart, _ bool) {
	o["stop_reason"] = p.stop
	if q := c.request; q.Detokenize != nil && !*q.Detokenize {
		o["token_ids"] = orEmpty(p.tokens)
		p.text = ""
	}
}

// trtFields are the adapter's name and locality, and the media and the salt if there are any; arrays omit all.
func trtFields(f *eventEncoder, c *cacheChange) []eventField {
	if !f.asMaps || c.kind != blockStored {
		return nil
	}
	fields := []eventField{textField("lora_name", c.salt.LoRA), textField("locality", "LOCAL")}
	if slices.ContainsFunc(c.keys, func(k []mediaKey) bool { return len(k) > 0 }) {
		fields = append(fields, eventField{"mm_keys", func(b []byte) []byte { return appendMediaKeys(b, c.keys) }})
	}
	if c.salt.Namespace != "" {
		fields = append(fields, textField("cache_salt", c.salt.Namespace))
	}
	return fields
}

// routeTRTLLM registers the HTTP API of TensorRT-LLM's server.
func (s *Server) routeTRTLLM(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/completions", s.serveOpenAI(false))
	mux.HandleFunc("POST /v1/chat/completions", s.serveOpenAI(true))
	mux.HandleFunc("GET /v1/models", s.trtModels)
	mux.HandleFunc("GET /health", s.serveOK)
	mux.HandleFunc("GET /health_generate", s.sglangHealth)
	mux.HandleFunc("GET /version", s.trtVersion)
	mux.HandleFunc("GET /server_info", s.trtServerInfo)
	mux.HandleFunc("GET /kv_cache_events", s.trtEvents)
	mux.HandleFunc("POST /kv_cache_events", s.trtEvents)
	if s.cfg.Features.Metrics.isOn(true) {
		mux.HandleFunc("GET /metrics", s.trtIterations)
		mux.HandleFunc("GET /prometheus/metrics", s.serveMetrics(s.trtMetrics))
		mux.HandleFunc("GET /prometheus/metrics/", s.serveMetrics(s.trtMetrics))
	}
}

func (s *Server) trtModels(w http.ResponseWriter, _ *http.Request) {
	var data []object
	for _, name := range s.cfg.Models {
		data = append(data, object{"id": name, "object": "model", "created": s.startedAt.Unix(), "owned_by": "tensorrt_llm"})
	}
	writeJSON(w, http.StatusOK, object{"object": "list", "data": data})
}

func (s *Server) trtVersion(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, object{"version": "1.3.0rc27"})
}

func (s *Server) trtServerInfo(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, object{
		"model": s.cfg.Models[0], "max_seq_len": s.card.ContextLength, "max_num_tokens": s.card.MaxBatchedTokens, "tokens_per_block": s.reportedBlockSize(),
		"data_parallel_size": len(s.ranks), "disaggregated_params": object{},
	})
}

// pullWait is how long a request for events waits for the first event.
const pullWait = 250 * time.Millisecond

// trtEvents returns the events of all ranks since the last call, and removes them. If there are none it waits
// pullWait, as the engine does.
func (s *Server) trtEvents(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), pullWait)
	defer cancel()
	if len(s.ranks) == 1 && s.ranks[0].feed.usesPulledList() {
		s.ranks[0].feed.awaitPulled(ctx)
	}
	type ranked struct {
		pulledEvent
		Rank *int `json:"attention_dp_rank,omitempty"`
	}
	out := []ranked{}
	for i, r := range s.ranks {
		for _, e := range r.feed.drainPulled() {
			item := ranked{pulledEvent: e}
			if len(s.ranks) > 1 {
				item.Rank = &i
			}
			out = append(out, item)
		}
	}
	writeJSON(w, http.StatusOK, out)
}

// trtIterations serves statistics of the last iteration as JSON.
func (s *Server) trtIterations(w http.ResponseWriter, r *http.Request) {
	if s.delayMetrics(r.Context()) != nil {
		return
	}
	size := s.reportedBlockSize()
	var out []object
	for _, r := range s.ranks {
		l, _ := s.loadOf(r)
		free := l.TotalBlocks - l.UsedBlocks
		out = append(out, object{
			"iter": time.Since(s.startedAt).Milliseconds(), "timestamp": time.Now().Format("01-02-2006 15:04:05.000000"), "iterLatencyMS": 0.0, "newActiveRequestsQueueLatencyMS": 0.0,
			"numActiveRequests": l.Running, "numQueuedRequests": l.Waiting, "numCompletedRequests": 0, "maxNumActiveRequests": 256,
			"kvCacheStats": object{
				"maxNumBlocks": l.TotalBlocks, "freeNumBlocks": free, "usedNumBlocks": l.UsedBlocks, "tokensPerBlock": size,
				"allocTotalBlocks": l.UsedBlocks + l.CachedBlocks, "allocNewBlocks": l.UsedBlocks, "reusedBlocks": 0, "missedBlocks": 0, "cacheHitRate": 0.0,
			},
		})
	}
	writeJSON(w, http.StatusOK, out)
}

// trtMetrics writes the metrics of a rank.
func (s *Server) trtMetrics(p *metricsPage, rank int, t *rankCounters, load engine.Load) {
	l := formatLabel("engine_type", "trtllm") + "," + formatLabel("model_name", s.cfg.Models[0])
	if len(s.ranks) > 1 {
		l = formatLabel("dp_rank", strconv.Itoa(rank)) + "," + l
	}
	p.addSample("gauge", "trtllm_num_requests_running", l, float64(load.Running))
	p.addSample("gauge", "trtllm_num_requests_waiting", l, float64(load.Waiting))
	p.addSample("gauge", "trtllm_kv_cache_utilization", l, usedShare(load.UsedBlocks, load.TotalBlocks))
	rate := 0.0
	if t.queries > 0 {
		rate = float64(t.hits) / float64(t.queries)
	}
	p.addSample("gauge", "trtllm_kv_cache_hit_rate", l, rate)
	p.addSample("gauge", "trtllm_kv_cache_tokens_per_block", l, float64(s.reportedBlockSize()))
	p.addSample("gauge", "trtllm_kv_cache_max_blocks", l, float64(load.TotalBlocks))
	for _, reason := range []string{reasonStop, reasonLength} {
		p.addSample("counter", "trtllm_request_success_total", l+","+formatLabel("finished_reason", reason), float64(t.ended[reason]))
	}
	p.addHistogram("trtllm_time_to_first_token_seconds", l, &t.timeToFirst)
	p.addHistogram("trtllm_time_per_output_token_seconds", l, &t.perToken)
	p.addHistogram("trtllm_e2e_request_latency_seconds", l, &t.endToEnd)
}
