package enginemock

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// openaiRequest is a request to /v1/completions or /v1/chat/completions, with the engines' extra fields. It
// ignores unknown fields, as the engines do.
type openaiRequest struct {
	Model               string            `json:"model"`
	Prompt              json.RawMessage   `json:"prompt"`
	Messages            []json.RawMessage `json:"messages"`
	Tools               json.RawMessage   `json:"tools"`
	TemplateArgs        json.RawMessage   `json:"chat_template_kwargs"`
	AddGenerationPrompt *bool             `json:"add_generation_prompt"`
	ContinueFinal       bool              `json:"continue_final_message"`

	samplingFields
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	MinTokens           int             `json:"min_tokens"`
	Seed                *int64          `json:"seed"`
	KeepStop            bool            `json:"include_stop_str_in_output"`
	SkipSpecial         *bool           `json:"skip_special_tokens"`
	Echo                bool            `json:"echo"`
	Logprobs            json.RawMessage `json:"logprobs"`
	TopLogprobs         *int            `json:"top_logprobs"`

	Stream        bool          `json:"stream"`
	StreamOptions streamOptions `json:"stream_options"`

	ReturnTokens     bool            `json:"return_token_ids"`
	TokenNames       bool            `json:"return_tokens_as_token_ids"`
	Detokenize       *bool           `json:"detokenize"`       // TensorRT-LLM's
	PromptTokens     []kv.Token      `json:"prompt_token_ids"` // TensorRT-LLM's, for chats
	CacheSalt        string          `json:"cache_salt"`
	ExtraKey         string          `json:"extra_key"` // SGLang's
	RequestID        string          `json:"request_id"`
	RID              string          `json:"rid"` // SGLang's
	Rank             *int            `json:"routed_dp_rank"`
	OldRank          *int            `json:"data_parallel_rank"`
	LoRAPath         string          `json:"lora_path"`
	KVTransfer       json.RawMessage `json:"kv_transfer_params"`
	ECTransfer       json.RawMessage `json:"ec_transfer_params"`
	Disaggregated    json.RawMessage `json:"disaggregated_params"`
	Slot             *int            `json:"id_slot"`
	CachePrompt      *bool           `json:"cache_prompt"`
	ReturnTextTokens bool            `json:"return_tokens"` // llama.cpp's
	TimingsPerToken  bool            `json:"timings_per_token"`
}

// samplingFields are the sampling fields which have the same names in OpenAI's API, in vLLM's token API and
// in SGLang's own API.
type samplingFields struct {
	N           *int               `json:"n"`
	Temperature *float64           `json:"temperature"`
	TopP        *float64           `json:"top_p"`
	TopK        *int               `json:"top_k"`
	MinP        *float64           `json:"min_p"`
	Presence    float64            `json:"presence_penalty"`
	Frequency   float64            `json:"frequency_penalty"`
	Repetition  *float64           `json:"repetition_penalty"`
	Bias        map[string]float32 `json:"logit_bias"`
	Stop        stringList         `json:"stop"`
	StopTokens  []kv.Token         `json:"stop_token_ids"`
	IgnoreEOS   bool               `json:"ignore_eos"`
}

// withSeed completes the fields with a seed.
func (d *samplingFields) withSeed(seed *int64) samplingParams {
	return samplingParams{d.Temperature, d.TopP, d.MinP, d.Repetition, d.TopK, d.Presence, d.Frequency, seed, d.Bias}
}

type streamOptions struct {
	Usage      bool `json:"include_usage"`
	Continuous bool `json:"continuous_usage_stats"`
}

// stringList is a string or a list of strings.
type stringList []string

// UnmarshalJSON implements json.Unmarshaler.
func (t *stringList) UnmarshalJSON(b []byte) error {
	*t = nil
	if bytes.HasPrefix(b, []byte(`"`)) {
		var one string
		err := json.Unmarshal(b, &one)
		*t = stringList{one}
		return err
	}
	return json.Unmarshal(b, (*[]string)(t))
}

// prompt is one prompt of a request; text is its text if the request had one.
type prompt struct {
	tokens []kv.Token
	text   string
	// media are the positions of the prompt's media, and objects the media, in the same order.
	media   []kv.Media
	objects []promptMedia
}

// maxPrompts bounds the prompts of one request.
const maxPrompts = 1024

// readPrompts reads a prompt that is a string, tokens, or a list of either.
func (s *Server) readPrompts(raw json.RawMessage) ([]prompt, error) {
	var one string
	if json.Unmarshal(raw, &one) == nil && !bytes.Equal(bytes.TrimSpace(raw), []byte("null")) {
		p, err := s.encodePrompt(one)
		return []prompt{p}, err
	}
	var elements []json.RawMessage
	if err := json.Unmarshal(raw, &elements); err != nil || len(elements) == 0 {
		return nil, fault.InvalidParam("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
	}
	if first := bytes.TrimSpace(elements[0]); len(first) > 0 && first[0] != '"' && first[0] != '[' {
		var tokens []kv.Token
		if err := json.Unmarshal(raw, &tokens); err != nil {
			return nil, fault.InvalidParam("prompt", "the tokens of the prompt must be integers of at least 0")
		}
		return []prompt{{tokens: tokens}}, nil
	}
	if len(elements) > maxPrompts {
		return nil, fault.InvalidParam("prompt", "%d prompts; at most %d are taken", len(elements), maxPrompts)
	}
	var all []prompt
	for _, e := range elements {
		if e[0] != '"' && e[0] != '[' {
			return nil, fault.InvalidParam("prompt", "the prompts must all be of one kind")
		}
		var p prompt
		if e[0] == '[' {
			if err := json.Unmarshal(e, &p.tokens); err != nil || len(p.tokens) == 0 {
				return nil, fault.InvalidParam("prompt", "the tokens of a prompt must be integers of at least 0")
			}
		} else {
			var text string
			err := json.Unmarshal(e, &text)
			if err == nil {
				p, err = s.encodePrompt(text)
			}
			if err != nil {
				return nil, err
			}
		}
		all = append(all, p)
	}
	return all, nil
}

// encodePrompt makes a prompt of a text.
func (s *Server) encodePrompt(text string) (prompt, error) {
	if s.cfg.Pipe == nil {
		return prompt{}, fault.New(fault.Invalid, "the server has no tokenizer: give token ids")
	}
	return prompt{tokens: s.cfg.Pipe.EncodeText(nil, text), text: text}, nil
}

// chatPrompt renders a conversation.
func (s *Server) chatPrompt(ctx context.Context, q *openaiRequest) (prompt, error) {
	if len(q.Messages) == 0 {
		return prompt{}, fault.InvalidParam("messages", "messages must not be empty")
	}
	if s.cfg.Pipe == nil {
		return prompt{}, fault.New(fault.Invalid, "the server has no tokenizer, and so no chat template")
	}
	c := prep.Chat{Tools: nilIfNull(q.Tools), Args: nilIfNull(q.TemplateArgs), ContinueFinal: q.ContinueFinal}
	c.Content, _ = prep.ContentRuleOf(string(s.cfg.Dialect))
	c.AddGenerationPrompt = !q.ContinueFinal && (q.AddGenerationPrompt == nil || *q.AddGenerationPrompt)
	var want []mediaRef
	for i, raw := range q.Messages {
		m, err := s.readMessage(raw, &c, &want)
		if err != nil {
			return prompt{}, fault.InvalidParam("messages", "message %d: %v", i, err)
		}
		c.Messages = append(c.Messages, m)
	}
	tokens, err := s.cfg.Pipe.EncodeChat(nil, &c)
	if err != nil {
		return prompt{}, err
	}
	p := prompt{tokens: tokens}
	return p, s.expandMedia(ctx, &p, want, nil)
}

// readMessage reads one message.
func (s *Server) readMessage(raw json.RawMessage, c *prep.Chat, want *[]mediaRef) (prep.Message, error) {
	var in struct {
		Role       string          `json:"role"`
		Name       string          `json:"name"`
		Content    json.RawMessage `json:"content"`
		ToolCalls  json.RawMessage `json:"tool_calls"`
		ToolCallID string          `json:"tool_call_id"`
		Reasoning  string          `json:"reasoning_content"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return prep.Message{}, fmt.Errorf("%s", describeJSONError(err))
	}
	m := prep.Message{Role: in.Role, Name: in.Name, ToolCalls: nilIfNull(in.ToolCalls), ToolCallID: in.ToolCallID, Reasoning: in.Reasoning}
	content := nilIfNull(in.Content)
	switch {
	case content == nil:
		m.NoContent = true
	case content[0] == '"':
		return m, json.Unmarshal(content, &m.Content)
	default:
		return m, s.readParts(content, &m, c, want)
	}
	return m, nil
}

func nilIfNull(raw json.RawMessage) []byte {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return nil
	}
	return raw
}

// samplingParams are the sampling parameters which the engines have in common.
type samplingParams struct {
	temperature, topP, minP, repetition *float64
	topK                                *int
	presence, frequency                 float64
	seed                                *int64
	bias                                map[string]float32
}

// toEngine returns the parameters in the engine contract's form. Without a seed it uses a new one.
func (q *samplingParams) toEngine(s *Server) (engine.Sampling, error) {
	or := func(v *float64, usual float64) float64 {
		if v == nil {
			return usual
		}
		return *v
	}
	out := engine.Sampling{
		Temperature: or(q.temperature, 1), TopP: or(q.topP, 1), MinP: or(q.minP, 0),
		RepetitionPenalty: or(q.repetition, 1), PresencePenalty: q.presence, FrequencyPenalty: q.frequency,
	}
	if q.topK != nil {
		out.TopK = max(*q.topK, 0)
	}
	if q.seed != nil {
		out.Seed = uint64(*q.seed)
	} else {
		out.Seed = s.nextRandom()
	}
	for _, id := range sortedKeys(q.bias) {
		t, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return out, fault.InvalidParam("logit_bias", "logit_bias has a key that is no token id")
		}
		out.Bias = append(out.Bias, engine.TokenBias{Token: kv.Token(t), Bias: q.bias[id]})
	}
	return out, nil
}

// apiCall is a decoded request: its prompts for the engine, and how it is answered.
type apiCall struct {
	id             string // "cmpl-…"
	model          string
	chat           bool
	created        int64
	request        *openaiRequest
	prompts        []prompt
	promptRequests []promptRequest
	choices        int
	rank           *rankServer
	logprobs       int // alternatives of log-probabilities; -1 for none
	slot           *slot
	began          time.Time
}

// newCall decodes a request.
func (s *Server) newCall(r *http.Request, q *openaiRequest, chat bool) (*apiCall, error) {
	c := &apiCall{model: q.Model, chat: chat, created: time.Now().Unix(), request: q, choices: 1, logprobs: -1, began: time.Now()}
	if c.model == "" {
		c.model = s.cfg.Models[0]
	}
	adapter, ok := s.resolveModel(q.Model)
	if s.cfg.Dialect == SGLang { // accepts any name, with an adapter after a colon
		_, name, _ := strings.Cut(q.Model, ":")
		if adapter, ok = s.sglangAdapter(name); !ok {
			return nil, fault.New(fault.Invalid, "The following requested LoRA adapters are not loaded: %.80q", name)
		}
	}
	if !ok && s.cfg.Dialect != LlamaCPP { // accepts any name
		return nil, fault.New(fault.NotFound, "The model `%s` does not exist.", q.Model)
	}
	if q.LoRAPath != "" {
		adapter = q.LoRAPath
	}
	var err error
	switch {
	case chat && len(q.PromptTokens) > 0:
		c.prompts = []prompt{{tokens: q.PromptTokens}}
	case chat:
		var p prompt
		p, err = s.chatPrompt(r.Context(), q)
		c.prompts = []prompt{p}
	default:
		c.prompts, err = s.readPrompts(q.Prompt)
	}
	if err != nil {
		return nil, err
	}
	if q.N != nil {
		if c.choices = *q.N; c.choices < 1 || c.choices > engine.MaxChoices {
			return nil, fault.InvalidParam("n", "n must be between 1 and %d", engine.MaxChoices)
		}
	}
	if c.logprobs, err = q.logprobCount(chat); err != nil {
		return nil, err
	}
	if c.rank, err = s.chooseRank(rankOf(r, q.Rank, q.OldRank)); err != nil {
		return nil, err
	}
	c.id = requestID(r, q, s)
	salt := kv.Salt{LoRA: adapter, Namespace: q.CacheSalt}
	if s.release != nil {
		salt.Namespace = s.release.cacheNamespace(q.CacheSalt, q.ExtraKey, true)
	}
	return c, s.addPrompts(c, salt)
}

// addPrompts converts the prompts to engine requests.
func (s *Server) addPrompts(c *apiCall, salt kv.Salt) error {
	q := c.request
	draw := q.withSeed(q.Seed)
	how, err := draw.toEngine(s)
	if err != nil {
		return err
	}
	for i, p := range c.prompts {
		limit, err := s.outputLimit(len(p.tokens), q, c.chat)
		if err != nil {
			return err
		}
		c.promptRequests = append(c.promptRequests, promptRequest{
			req: &engine.Request{
				ID: c.id + "-" + strconv.Itoa(i), Attempt: 1, Model: s.card.Name, Salt: salt, Prompt: p.tokens, Media: p.media, Choices: c.choices,
				Sampling: how, Logprobs: c.logprobs,
				Stop: engine.Stop{MaxTokens: limit, MinTokens: q.MinTokens, Tokens: q.StopTokens, IgnoreEOS: q.IgnoreEOS},
			},
			prompt:  p,
			stop:    stopRule{withoutEmpty(q.Stop), q.KeepStop},
			special: q.SkipSpecial != nil && !*q.SkipSpecial,
		})
	}
	return nil
}

func withoutEmpty(list []string) []string {
	var out []string
	for _, s := range list {
		if s != "" {
			out = append(out, s)
		}
	}
	return out
}

// outputLimit is how many tokens an answer may have.
func (s *Server) outputLimit(prompt int, q *openaiRequest, chat bool) (int, error) {
	room := s.card.ContextLength - prompt
	asked := q.MaxTokens
	if q.MaxCompletionTokens != nil {
		asked = q.MaxCompletionTokens
	}
	if room < 1 {
		return 0, fault.New(fault.Invalid, "This model's maximum context length is %d tokens. However, your request has %d input tokens. Please reduce the length of the input messages.", s.card.ContextLength, prompt)
	}
	switch {
	case asked == nil && !chat && s.cfg.Dialect != LlamaCPP:
		return min(16, room), nil
	case asked == nil:
		return room, nil
	case *asked < 0 && s.cfg.Dialect == LlamaCPP:
		return room, nil
	case *asked < 1:
		return 0, fault.InvalidParam("max_tokens", "max_tokens must be at least 1, got %d.", *asked)
	case *asked > room && s.cfg.Dialect.isVLLM():
		return 0, fault.New(fault.Invalid, "'max_tokens' or 'max_completion_tokens' is too large: %d. This model's maximum context length is %d tokens and your request has %d input tokens (%d > %d - %d).", *asked, s.card.ContextLength, prompt, *asked, s.card.ContextLength, prompt)
	}
	return min(*asked, room), nil
}

// logprobCount reads how many alternatives are requested: a number in completions, a flag and a number in
// chats.
func (q *openaiRequest) logprobCount(chat bool) (int, error) {
	raw := nilIfNull(q.Logprobs)
	if raw == nil {
		return -1, nil
	}
	var flag bool
	if json.Unmarshal(raw, &flag) == nil {
		if !flag {
			return -1, nil
		}
		if q.TopLogprobs != nil {
			return max(*q.TopLogprobs, 0), nil
		}
		return 0, nil
	}
	var n int
	if err := json.Unmarshal(raw, &n); err != nil || n < 0 || n > 20 || chat {
		return 0, fault.InvalidParam("logprobs", "logprobs must be a number of at most 20, or in a chat true or false")
	}
	return n, nil
}

// rankOf is the data-parallel rank that a request asks for; nil if any.
func rankOf(r *http.Request, fields ...*int) *int {
	if v := r.Header.Get("X-data-parallel-rank"); v != "" {
		if n, err := strconv.Atoi(v); err == nil {
			return &n
		}
		n := -1
		return &n
	}
	for _, f := range fields {
		if f != nil {
			return f
		}
	}
	return nil
}

// requestID is the id of the answer.
func requestID(r *http.Request, q *openaiRequest, s *Server) string {
	prefix := "cmpl-"
	if len(q.Messages) > 0 {
		prefix = "chatcmpl-"
	}
	for _, id := range []string{r.Header.Get("X-Request-Id"), q.RequestID} {
		if id != "" && s.cfg.Dialect.isVLLM() {
			return prefix + id
		}
	}
	if q.RID != "" {
		return q.RID
	}
	return prefix + s.freshID()
}

// freshID is a random-looking id of 32 hex digits.
func (s *Server) freshID() string { return fmt.Sprintf("%016x%016x", s.nextRandom(), s.nextRandom()) }

// usage counts the tokens of a complete answer.
type usage struct{ prompt, completion, cached int }

// promptTokens counts the tokens of the call's prompts.
func (c *apiCall) promptTokens() int {
	n := 0
	for _, p := range c.prompts {
		n += len(p.tokens)
	}
	return n
}

// usageBody encodes usage. Cached tokens are reported only with the complete usage.
func (s *Server) usageBody(u usage, withCached bool) object {
	o := object{"prompt_tokens": u.prompt, "total_tokens": u.prompt + u.completion, "completion_tokens": u.completion}
	if s.cfg.Dialect.isVLLM() || s.cfg.Dialect == SGLang {
		o["prompt_tokens_details"] = nil
	}
	if s.release != nil && s.release.chats { // of the same versions
		o["reasoning_tokens"] = 0
	}
	if withCached && s.reportsCached(u.cached) {
		o["prompt_tokens_details"] = object{"cached_tokens": u.cached}
	}
	return o
}

// reportsCached reports whether a number of cached tokens appears in usage. vLLM omits zero, and so do older
// releases of SGLang.
func (s *Server) reportsCached(cached int) bool {
	if cached == engine.CachedUnknown || !s.cfg.Features.Details.isOn(true) {
		return false
	}
	return cached > 0 || !s.cfg.Dialect.isVLLM() && (s.release == nil || s.release.ready)
}

// reportedCached is the number of cached tokens to report: unknown if a fault omits it.
func (s *Server) reportedCached(cached int) int {
	if _, hit := s.faults.takeDue(FaultNoCached); hit {
		return engine.CachedUnknown
	}
	return cached
}

// serveOpenAI serves both OpenAI routes.
func (s *Server) serveOpenAI(chat bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q openaiRequest
		if !s.readBody(w, r, &q) {
			return
		}
		f, ok := s.startAnswer(w, r)
		if !ok {
			return
		}
		defer f.release()
		c, err := s.newCall(r, &q, chat)
		if err != nil {
			s.writeError(w, err)
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer s.registerRequest(c.id, cancel)()
		if s.slots != nil {
			c.slot, err = s.slots.acquireSlot(ctx, c.prompts[0].tokens, q.Slot, q.CachePrompt)
			if err != nil {
				s.writeError(w, err)
				return
			}
			defer c.slot.releaseSlot()
		}
		a, err := s.startGeneration(ctx, c.rank, c.promptRequests...)
		if err != nil {
			s.writeError(w, err)
			return
		}
		defer a.stopAndWait()
		if err := a.awaitAccepted(ctx); err != nil {
			s.writeError(w, err)
			return
		}
		m := s.stats.startRequest(c.rank.index, c.promptTokens(), publicPart(c.promptRequests[0].req.Salt.LoRA))
		defer m.finishRequest()
		if q.Stream {
			s.streamAnswer(ctx, w, c, a, f, m)
			return
		}
		s.wholeAnswer(ctx, w, c, a, f, m)
	}
}

// choiceBody encodes a part of a choice in the dialect's format.
func (s *Server) choiceBody(c *apiCall, p *outputPart, first bool) object {
	o := object{"index": p.prompt*c.choices + p.choice, "logprobs": nil, "finish_reason": nil}
	if p.reason != "" {
		o["finish_reason"] = p.reason
	}
	if c.logprobs >= 0 {
		o["logprobs"] = s.logprobsBody(c, p)
	}
	switch s.cfg.Dialect {
	case SGLang:
		o["matched_stop"] = p.stop
	case LlamaCPP:
	default:
		o["stop_reason"] = p.stop
	}
	q := c.request
	bare := s.cfg.Dialect == TRTLLM && q.Detokenize != nil && !*q.Detokenize
	if bare || s.cfg.Dialect.isVLLM() && q.ReturnTokens || s.cfg.Dialect == SGLang && q.ReturnTokens {
		o[s.tokensField(c)] = orEmpty(p.tokens)
	}
	if bare {
		p.text = ""
	}
	if s.cfg.Dialect.isVLLM() && q.ReturnTokens && first && !c.chat {
		o["prompt_token_ids"] = c.prompts[p.prompt].tokens
	}
	return o
}

// chatMessage encodes the message of a chat answer.
func (s *Server) chatMessage(text string) object {
	o := object{"role": "assistant", "content": text, "tool_calls": []object{}}
	if s.release != nil {
		o["reasoning_content"], o["tool_calls"] = nil, nil
		if s.release.ready { // of the same versions
			delete(o, "tool_calls")
		}
	}
	return o
}

// tokensField is the name of a choice's field with its tokens.
func (s *Server) tokensField(c *apiCall) string {
	if s.release != nil && s.release.ready && c.chat {
		return "response_token_ids"
	}
	return "token_ids"
}

func orEmpty(t []kv.Token) []kv.Token {
	if t == nil {
		return []kv.Token{}
	}
	return t
}

// newBody returns the fields which all chunks of an answer start with.
func (c *apiCall) newBody(kind string) object {
	return object{"id": c.id, "object": kind, "created": c.created, "model": c.model}
}

// streamAnswer answers with a stream.
func (s *Server) streamAnswer(ctx context.Context, w http.ResponseWriter, c *apiCall, a *outputStream, f *answerFaults, m *requestStats) {
	st := newSSEStream(w)
	kind := "text_completion"
	if c.chat {
		kind = "chat.completion.chunk"
	}
	u := usage{prompt: c.promptTokens(), cached: engine.CachedUnknown}
	seen := make([]bool, c.choices*len(c.prompts))
	counted, said := make([]int, len(seen)), make([]int, len(seen))
	var last object // llama.cpp's last chunk has the timings
	chunk := func(choices []object, u *usage) object {
		o := c.newBody(kind)
		o["choices"] = choices
		switch {
		case u != nil:
			o["usage"] = s.usageBody(*u, len(choices) == 0)
		case !c.chat && s.cfg.Dialect.isVLLM() || s.cfg.Dialect == SGLang:
			o["usage"] = nil
		}
		if s.cfg.Dialect == LlamaCPP {
			o["system_fingerprint"] = "b7000-mimic"
		}
		return o
	}
	flush := st.flush
	if s.cfg.Dialect == LlamaCPP {
		defer st.startPings(s.cfg.Ping)()
	}
	err := s.forEachPart(ctx, a, f, flush, func(p *outputPart) error {
		i := p.prompt*c.choices + p.choice
		first := !seen[i]
		seen[i] = true
		counted[i] += len(p.tokens)
		u.completion += len(p.tokens)
		if first {
			if p.choice == 0 { // the choices of a prompt share it
				u.cached = addCached(u.cached, p.cached)
			}
		}
		m.countTokens(p)
		c.slot.addTokens(p.tokens)
		echo := ""
		if first && c.request.Echo && !c.chat {
			echo = c.prompts[p.prompt].text
		}
		p.offset = said[i]
		o := s.choiceBody(c, p, first)
		said[i] = p.offset
		var continuous *usage
		if c.request.StreamOptions.Continuous {
			continuous = &usage{prompt: len(c.prompts[p.prompt].tokens), completion: counted[i]}
		}
		if c.chat && first {
			role := chunk([]object{{"index": i, "delta": object{"role": "assistant", "content": ""}, "logprobs": nil, "finish_reason": nil}}, nil)
			if s.cfg.Dialect.isVLLM() && c.request.ReturnTokens {
				role["prompt_token_ids"] = c.prompts[p.prompt].tokens
			}
			st.writeEvent(role)
		}
		if c.chat {
			delta := object{}
			if p.text != "" || p.reason == "" {
				delta["content"] = p.text
			}
			o["delta"] = delta
		} else {
			o["text"] = echo + p.text
		}
		event := chunk([]object{o}, continuous)
		if p.reason != "" {
			m.countFinish(p.reason)
			last = event
			if s.cfg.Dialect == LlamaCPP {
				event["timings"] = c.llamaTimings(u.completion)
			}
		}
		st.writeEvent(event)
		return nil
	})
	if s.slots != nil {
		u.cached = c.slot.cached
	}
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		status, message := statusOf(err)
		st.writeEvent(s.streamError(status, message))
		if s.cfg.Dialect == LlamaCPP {
			st.flush()
			return
		}
	case c.request.StreamOptions.Usage:
		u.cached = s.reportedCached(u.cached)
		event := chunk([]object{}, &u)
		if s.cfg.Dialect == LlamaCPP && last != nil {
			event["timings"] = last["timings"]
		}
		st.writeEvent(event)
	}
	m.countCached(u)
	st.writeLine([]byte("[DONE]"))
	st.flush()
}

// streamError is an error inside a stream.
func (s *Server) streamError(status int, message string) any {
	body := object{"message": message, "type": errorType(s.cfg.Dialect, status), "param": nil, "code": status}
	return object{"error": body}
}

// wholeAnswer answers with one object.
func (s *Server) wholeAnswer(ctx context.Context, w http.ResponseWriter, c *apiCall, a *outputStream, f *answerFaults, m *requestStats) {
	whole := make([]outputPart, c.choices*len(c.prompts))
	seen := make([]bool, len(whole))
	u := usage{prompt: c.promptTokens(), cached: engine.CachedUnknown}
	err := s.forEachPart(ctx, a, f, func() {}, func(p *outputPart) error {
		i := p.prompt*c.choices + p.choice
		if !seen[i] {
			if p.choice == 0 { // the choices of a prompt share it
				u.cached = addCached(u.cached, p.cached)
			}
			seen[i] = true
		}
		u.completion += len(p.tokens)
		m.countTokens(p)
		c.slot.addTokens(p.tokens)
		to := &whole[i]
		to.prompt, to.choice = p.prompt, p.choice
		to.tokens = append(to.tokens, p.tokens...)
		to.logprobs = append(to.logprobs, p.logprobs...)
		to.text += p.text
		if p.reason != "" {
			to.reason, to.stop = p.reason, p.stop
			m.countFinish(p.reason)
		}
		return nil
	})
	if ctx.Err() != nil {
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		s.writeError(w, err)
		return
	}
	kind := "text_completion"
	if c.chat {
		kind = "chat.completion"
	}
	if s.slots != nil {
		u.cached = c.slot.cached
	}
	out := c.newBody(kind)
	var choices []object
	for i := range whole {
		p := &whole[i]
		o := s.choiceBody(c, p, true)
		switch {
		case c.chat:
			o["message"] = s.chatMessage(p.text)
		case c.request.Echo:
			o["text"] = c.prompts[p.prompt].text + p.text
		default:
			o["text"] = p.text
		}
		choices = append(choices, o)
	}
	out["choices"] = choices
	transfer, cached := s.transferKV(c, whole[0].reason, u.cached)
	u.cached = s.reportedCached(cached)
	m.countCached(u)
	out["usage"] = s.usageBody(u, true)
	switch {
	case s.cfg.Dialect.isVLLM():
		out["kv_transfer_params"] = transfer
		if raw := nilIfNull(c.request.ECTransfer); raw != nil {
			out["ec_transfer_params"] = json.RawMessage(raw)
		}
		if c.chat && c.request.ReturnTokens {
			out["prompt_token_ids"] = c.prompts[0].tokens
		}
	case s.cfg.Dialect == TRTLLM:
		s.addContextParams(c, choices)
	case s.cfg.Dialect == LlamaCPP:
		out["system_fingerprint"] = "b7000-mimic"
		out["timings"] = c.llamaTimings(u.completion)
	}
	writeJSON(w, http.StatusOK, out)
}

// logprobsBody encodes the log-probabilities of a part, in the format of completions or chats.
func (s *Server) logprobsBody(c *apiCall, p *outputPart) object {
	name := func(t kv.Token) string {
		if s.cfg.Pipe == nil || c.request.TokenNames {
			return "token_id:" + strconv.FormatUint(uint64(t), 10)
		}
		b, _ := s.cfg.Pipe.Tokenizer.AppendBytes(nil, t)
		return strings.ToValidUTF8(string(b), "\uFFFD")
	}
	if c.chat {
		content := []object{}
		for i := range p.logprobs {
			l := &p.logprobs[i]
			top := []object{}
			for _, t := range l.Top {
				top = append(top, object{"token": name(t.Token), "logprob": t.Logprob, "bytes": bytesOf(name(t.Token))})
			}
			content = append(content, object{"token": name(l.Token), "logprob": l.Logprob, "bytes": bytesOf(name(l.Token)), "top_logprobs": top})
		}
		return object{"content": content}
	}
	tokens, values, tops, offsets := []string{}, []float32{}, []map[string]float32{}, []int{}
	for i := range p.logprobs {
		l := &p.logprobs[i]
		top := map[string]float32{name(l.Token): l.Logprob}
		for _, t := range l.Top {
			top[name(t.Token)] = t.Logprob
		}
		tokens, values, tops, offsets = append(tokens, name(l.Token)), append(values, l.Logprob), append(tops, top), append(offsets, p.offset)
		p.offset += len(name(l.Token))
	}
	return object{"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}
}

func bytesOf(s string) []int {
	out := make([]int, len(s))
	for i := range len(s) {
		out[i] = int(s[i])
	}
	return out
}
