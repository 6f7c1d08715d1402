package mimic

import (
	"encoding/json"
	"net"
	"strconv"
	"time"

	"penstock/core/splitmix"
)

// transferParams are vLLM's kv_transfer_params as its NIXL connector has them.
type transferParams struct {
	RemoteDecode  bool   `json:"do_remote_decode"`
	RemotePrefill bool   `json:"do_remote_prefill"`
	RequestID     string `json:"remote_request_id"`
	EngineID      string `json:"remote_engine_id"`
	Tokens        int    `json:"remote_num_tokens"`
}

// leaseTime is for how long a prefill keeps blocks for a decode (kv_lease_duration).
const leaseTime = 30 * time.Second

// maxLeases bounds what is remembered of them.
const maxLeases = 1 << 16

// transfer plays the part of a prefill or a decode instance: it returns what the answer says for
// the other one, and how many tokens were in the cache or came from elsewhere. A prefill that did not
// end by length says nothing, since there is nothing to go on with; a decode that does not know the
// other's request computes everything again and says so to nobody.
func (s *Server) transfer(c *call, reason string, cached int) (answer any, now int) {
	raw := notNull(c.q.KVTransfer)
	if raw == nil || !s.cfg.Dialect.vllm() {
		return nil, cached
	}
	var p transferParams
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, cached
	}
	prompt := c.prompts[0].tokens
	switch {
	case p.RemotePrefill:
		if s.cfg.Dialect == VLLM && p.RequestID == "" || p.EngineID == "" {
			return nil, cached
		}
		return nil, max(cached, len(prompt)-1)
	case !p.RemoteDecode || reason != reasonLength:
		return nil, cached
	}
	s.lease(c.id)
	host, port := s.host()
	blocks := make([]int, 0, len(prompt)/s.card.BlockSize+1)
	for i := 0; i < len(prompt); i += s.card.BlockSize {
		blocks = append(blocks, int(splitmix.Mix(s.draw())%uint64(max(s.card.Blocks, 1))))
	}
	out := object{
		"do_remote_prefill": true, "do_remote_decode": false, "remote_engine_id": s.engineID(c.rank.index),
		"remote_host": host, "remote_port": port, "tp_size": 1,
	}
	if s.cfg.Dialect == VLLM {
		out["remote_block_ids"], out["remote_request_id"], out["remote_num_tokens"] = [][]int{blocks}, c.id, len(prompt)
	} else {
		out["remote_block_ids"] = blocks
	}
	return out, cached
}

// engineID names a rank's engine towards others.
func (s *Server) engineID(rank int) string {
	return strconv.FormatUint(splitmix.Mix(s.cfg.Seed^0xe1d), 16) + "_dp" + strconv.Itoa(rank)
}

// host is where the side channel would be.
func (s *Server) host() (string, int) {
	host, _, err := net.SplitHostPort(s.ln.Addr().String())
	if err != nil {
		return "127.0.0.1", 5600
	}
	return host, 5600
}

// lease notes that blocks are kept for a decode. Leases end by themselves: instances here do not
// talk with each other.
func (s *Server) lease(id string) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(now)
	if len(s.mu.leases) < maxLeases {
		s.mu.leases[id] = now.Add(leaseTime)
	}
}

// expire drops the leases that are over. s.mu is locked.
func (s *Server) expire(now time.Time) {
	for id, end := range s.mu.leases {
		if now.After(end) {
			delete(s.mu.leases, id)
		}
	}
}

// leases counts those that hold.
func (s *Server) leases() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(time.Now())
	return len(s.mu.leases)
}

// contextOnly plays TensorRT-LLM's context server: its choices say how a generation server goes on.
func (s *Server) contextOnly(c *call, choices []object) {
	raw := notNull(c.q.Disaggregated)
	if raw == nil {
		return
	}
	var p struct {
		Type string `json:"request_type"`
		ID   *int64 `json:"disagg_request_id"`
	}
	if json.Unmarshal(raw, &p) != nil || p.Type != "context_only" {
		return
	}
	id := int64(s.draw() >> 12)
	if p.ID != nil {
		id = *p.ID
	}
	for i := range choices {
		choices[i]["disaggregated_params"] = object{
			"request_type": "context_only", "ctx_request_id": id, "first_gen_tokens": choices[i]["token_ids"],
			"encoded_opaque_state": "bWltaWM=", "draft_tokens": nil, "ctx_dp_rank": c.rank.index,
		}
	}
}
