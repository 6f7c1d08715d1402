package enginemock

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
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
	roomFields                       // SGLang's
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
	resolve := s.dialect.resolve
	if resolve == nil {
		resolve = refuseUnknown
	}
	adapter, err := resolve(s, q.Model)
	if err != nil {
		return nil, err
	}
	if q.LoRAPath != "" {
		adapter = q.LoRAPath
	}
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
	if r := s.dialect.release; r != nil {
		salt.Namespace = r.cacheNamespace(q.CacheSalt, q.ExtraKey, true)
	}
	return c, s.addPrompts(c, salt)
}

// addPrompts converts the prompts to engine requests.
func (s *Server) addPrompts(c *apiCall, salt kv.Salt) error {
	q := c.request
	var transfer *kvTransfer
	if s.dialect.transfer != nil {
		transfer = s.dialect.transfer(s, c)
	}
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
			// Of several prompts the parameters of the first one count.
			transfer: transfer,
		})
		transfer = nil
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
	case s.dialect.negativeIsFull && (asked == nil || *asked < 0), asked == nil && chat:
		return room, nil
	case asked == nil:
		return min(16, room), nil
	case *asked < 1:
		return 0, fault.InvalidParam("max_tokens", "max_tokens must be at least 1, got %d.", *asked)
	case *asked > room && s.dialect.refusesExcess:
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
		if id != "" && s.dialect.clientIDs {
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
