package enginemock

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/splitmix"
)

// kvTransfer is one prompt's part in a disaggregated prefill: it fetches blocks at the start, or keeps its own for
// another instance. A nil one does neither.
type kvTransfer struct {
	server *Server
	// Of a decode: where to claim what. addr is "" if the request names nothing that can be fetched.
	addr  string
	claim leaseClaim
	// Of a prefill which others may wait for: the lease.
	offer string
}

// received is what a decode got.
type received struct {
	// tokens of the prompt need not be computed: all but the last, or none if the fetch failed.
	tokens int
	// garbage says that the blocks were another prompt's, so that the answer is wrong.
	garbage bool
}

// begin fetches the blocks of a decode, or offers the blocks of a prefill. A fetch which failed is an error only if the
// engine fails such requests (kv_load_failure_policy "fail"); else no answer mentions it.
func (t *kvTransfer) begin(ctx context.Context, prompt []kv.Token) (got received, err error) {
	switch {
	case t == nil:
		return got, nil
	case t.offer != "":
		if !t.server.openLease(t.offer, prompt) {
			t.offer = "" // the room is taken
			t.server.countReceived(false)
		}
		return got, nil
	}
	var answer leaseAnswer
	if t.addr != "" {
		if t.claim.Prompt = digestTokens(prompt); len(prompt) == 1 {
			t.claim.Prompt = anyPrompt
		}
		answer, err = claimLease(ctx, t.addr, &t.claim)
	}
	t.server.countReceived(answer.Tokens > 0)
	if errors.Is(err, errNoPeer) && t.server.cfg.Features.FailKVLoads.isOn(false) {
		return got, fault.New(fault.Internal, "Internal server error")
	}
	return received{max(0, min(answer.Tokens, len(prompt)-1)), answer.Consumed}, nil
}

// anyPrompt stands for the digest of a prompt which fills no block, so that it takes nothing of what it fetches: a router
// frees blocks with it.
const anyPrompt = 0

// spoil returns tokens as they are, or others if the answer was made from another prompt's blocks.
func (r *received) spoil(tokens []kv.Token, vocabulary int) []kv.Token {
	if !r.garbage {
		return tokens
	}
	wrong := make([]kv.Token, len(tokens))
	for i, t := range tokens {
		wrong[i] = kv.Token((int(t) + 1) % vocabulary)
	}
	return wrong
}

// finish ends the prefill of offered blocks.
func (t *kvTransfer) finish(err error) {
	switch {
	case t == nil || t.offer == "":
	case err != nil:
		t.server.dropLease(t.offer)
	default:
		t.server.keepLease(t.offer)
	}
}

// countReceived counts a transfer of blocks to this instance.
func (s *Server) countReceived(ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ok {
		s.mu.received++
	} else {
		s.mu.missed++
	}
}

// nixlParams are vLLM's kv_transfer_params of its NIXL connector.
type nixlParams struct {
	RemoteDecode  bool            `json:"do_remote_decode"`
	RemotePrefill bool            `json:"do_remote_prefill"`
	RequestID     string          `json:"remote_request_id"`
	EngineID      string          `json:"remote_engine_id"`
	Blocks        json.RawMessage `json:"remote_block_ids"`
	Host          string          `json:"remote_host"`
	Port          int             `json:"remote_port"`
}

// readNIXL reads the parameters of a request; false if it has none.
func (c *apiCall) readNIXL() (p nixlParams, ok bool) {
	raw := nilIfNull(c.request.KVTransfer)
	return p, raw != nil && json.Unmarshal(raw, &p) == nil
}

// nixlKey names the blocks of a request of an engine.
func nixlKey(engine, request string, blocks any) string {
	return fmt.Sprintf("nixl/%s/%s/%s", engine, request, marshalJSON(blocks))
}

// nixlTransfer returns the transfer to a decode instance of vLLM; nil for other requests.
func (s *Server) nixlTransfer(c *apiCall) *kvTransfer {
	p, ok := c.readNIXL()
	if !ok || !p.RemotePrefill || !s.cfg.Features.KVTransfer.isOn(true) {
		return nil
	}
	t := &kvTransfer{server: s}
	var blocks any
	if json.Unmarshal(p.Blocks, &blocks) != nil || p.EngineID == "" || p.Host == "" || !s.dialect.legacy && p.RequestID == "" {
		return t
	}
	t.addr = net.JoinHostPort(p.Host, strconv.Itoa(p.Port))
	t.claim.Key = nixlKey(p.EngineID, p.RequestID, blocks)
	return t
}

// nixlAnswer behaves as a prefill instance of vLLM: it keeps the blocks and returns the parameters for the decode
// instance. A prefill that did not end by length returns none, since there is nothing to continue.
func (s *Server) nixlAnswer(c *apiCall, reason string, cached int) any {
	p, ok := c.readNIXL()
	if !ok || !p.RemoteDecode || reason != reasonLength || !s.cfg.Features.KVTransfer.isOn(true) {
		return nil
	}
	prompt := c.prompts[0].tokens
	list := make([]int, 0, len(prompt)/s.card.BlockSize+1)
	for i := 0; i < len(prompt); i += s.card.BlockSize {
		list = append(list, int(splitmix.Mix(s.nextRandom())%uint64(max(s.card.Blocks, 1))))
	}
	var blocks any = list
	engine, request := s.engineID(c.rank.index), ""
	host, port := s.listenAddr()
	out := object{
		"do_remote_prefill": true, "do_remote_decode": false, "remote_engine_id": engine,
		"remote_host": host, "remote_port": port, "tp_size": 1,
	}
	if !s.dialect.legacy {
		blocks, request = [][]int{list}, c.id // of each group
		out["remote_request_id"], out["remote_num_tokens"], out["remote_prefill_cached_tokens"] = request, len(prompt), max(cached, 0)
		out["transfer_mode"], out["pp_size"], out["dcp_size"] = "pull", 1, 1
	}
	out["remote_block_ids"] = blocks
	if key := nixlKey(engine, request, blocks); s.openLease(key, prompt) {
		s.keepLease(key)
	}
	return out
}

// engineID names a rank's engine for other instances.
func (s *Server) engineID(rank int) string {
	return strconv.FormatUint(splitmix.Mix(s.cfg.Seed^0xe1d), 16) + "_dp" + strconv.Itoa(rank)
}

// contextParams are TensorRT-LLM's disaggregated_params.
type contextParams struct {
	Type     string `json:"request_type"`
	ID       *int64 `json:"disagg_request_id"`
	Context  *int64 `json:"ctx_request_id"`
	Opaque   string `json:"encoded_opaque_state"`
	FirstGen []int  `json:"first_gen_tokens"`
}

// contextState is the content of the opaque state: where the blocks are.
type contextState struct {
	Addr   string `json:"addr"`
	Secret string `json:"secret"`
}

func (c *apiCall) readContext() (p contextParams, ok bool) {
	raw := nilIfNull(c.request.Disaggregated)
	return p, raw != nil && json.Unmarshal(raw, &p) == nil
}

func contextKey(id int64, secret string) string { return fmt.Sprintf("context/%d/%s", id, secret) }

// contextTransfer returns the transfer to a generation server of TensorRT-LLM; nil for other requests.
func (s *Server) contextTransfer(c *apiCall) *kvTransfer {
	p, ok := c.readContext()
	if !ok || p.Type != "generation_only" {
		return nil
	}
	t := &kvTransfer{server: s}
	var state contextState
	data, err := base64.StdEncoding.DecodeString(p.Opaque)
	if err != nil || json.Unmarshal(data, &state) != nil || p.Context == nil || len(p.FirstGen) == 0 {
		return t
	}
	t.addr, t.claim.Key = state.Addr, contextKey(*p.Context, state.Secret)
	return t
}

// addContextParams behaves as TensorRT-LLM's context server: its choices carry the parameters for a generation
// server.
func (s *Server) addContextParams(c *apiCall, out object, _ string, _ *usage) {
	p, ok := c.readContext()
	if !ok || p.Type != "context_only" {
		return
	}
	id := int64(s.nextRandom() >> 12)
	if p.ID != nil {
		id = *p.ID
	}
	host, port := s.listenAddr()
	state := contextState{net.JoinHostPort(host, strconv.Itoa(port)), s.freshID()}
	if key := contextKey(id, state.Secret); s.openLease(key, c.prompts[0].tokens) {
		s.keepLease(key)
	}
	for _, choice := range out["choices"].([]object) {
		choice["disaggregated_params"] = object{
			"request_type": "context_only", "ctx_request_id": id, "first_gen_tokens": choice["token_ids"],
			"encoded_opaque_state": base64.StdEncoding.EncodeToString(marshalJSON(state)), "draft_tokens": nil, "ctx_dp_rank": c.rank.index,
		}
	}
}

// roomFields are SGLang's fields of both legs of a disaggregated prefill, in lists for a batch.
type roomFields struct {
	Host oneOrMany[string] `json:"bootstrap_host"`
	Port oneOrMany[*int]   `json:"bootstrap_port"`
	Room oneOrMany[*int64] `json:"bootstrap_room"`
}

// defaultBootstrapPort is the port of a leg which names none.
const defaultBootstrapPort = 8998

// roomTransfer returns the transfer of request i of a batch: the server at whose address the two legs meet prefills,
// the other one fetches. It returns nil for a request without a room.
func (q *roomFields) roomTransfer(s *Server, i int) *kvTransfer {
	host, room, port := q.Host.at(i), q.Room.at(i), defaultBootstrapPort
	if host == "" || room == nil {
		return nil
	}
	if p := q.Port.at(i); p != nil {
		port = *p
	}
	key := fmt.Sprintf("room/%d", *room)
	if s.isOwnAddress(host, port) {
		return &kvTransfer{server: s, offer: key}
	}
	return &kvTransfer{server: s, addr: net.JoinHostPort(host, strconv.Itoa(port)), claim: leaseClaim{Key: key, Room: true}}
}
