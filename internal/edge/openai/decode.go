package openai

import (
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// Decode decodes the body of a request to a generation endpoint. The result does not reference body. The
// error is a *fault.Error of code Invalid which names the field.
func Decode(endpoint api.Endpoint, body []byte) (*api.Request, error) {
	r, err := strictjson.NewReader(body)
	if err != nil {
		return nil, err
	}
	d := &requestDecoder{Reader: r, req: &api.Request{
		Endpoint:            endpoint,
		AddGenerationPrompt: true,
		N:                   1,
		Logprobs:            -1,
	}}
	if err := r.ReadObject(d.readField); err != nil {
		return nil, err
	}
	if err := r.CheckEnd(); err != nil {
		return nil, err
	}
	if err := d.checkRequest(); err != nil {
		return nil, err
	}
	return d.req, nil
}

// requestDecoder decodes one request. In addition to the request it keeps fields whose meaning depends on
// others.
type requestDecoder struct {
	*strictjson.Reader
	req *api.Request

	unknown       strictjson.UnknownKeys // top-level keys
	messages      bool                   // given
	prompt        bool                   // given
	streamOptions bool                   // given
	addGeneration bool                   // add_generation_prompt is given and true
	logprobs      bool                   // chat's logprobs, which top_logprobs requires
	greedSampling bool                   // nvext.greed_sampling
	maxCompletion int
	topLogprobs   int
	bestOf        int
	extSalt       string
	hasPriority   bool          // agent_hints.priority is given
	sensitivity   time.Duration // agent_hints.latency_sensitivity
	tools         []toolDeclaration
	toolsText     []byte // the array, a slice of the body
	choice        toolChoice
	args          templateArgs
	effort        string // reasoning_effort
	mediaCount    api.MediaCount
	parts         []api.Part // of the content being decoded
}

// readField reads the value of one top-level key. Null counts as not given.
func (d *requestDecoder) readField(key string) error {
	if none, err := d.ReadNull(); none || err != nil {
		return err
	}
	known, err := d.readCommonField(key)
	if known || err != nil {
		return err
	}
	if d.req.Endpoint == api.Chat {
		known, err = d.readChatField(key)
	} else {
		known, err = d.readCompletionField(key)
	}
	if known || err != nil {
		return err
	}
	if known, err = d.readUnusedField(key); known || err != nil {
		return err
	}
	d.unknown.Add(key)
	return d.SkipValue()
}

// readCommonField reads the fields which both endpoints have.
func (d *requestDecoder) readCommonField(key string) (known bool, err error) {
	q := d.req
	switch key {
	case "model":
		return true, d.ReadStringInto(&q.Model)
	case "stream":
		return true, d.ReadBoolInto(&q.Stream)
	case "stream_options":
		d.streamOptions = true
		return true, d.ReadObject(d.readStreamOption)
	case "n":
		return true, d.ReadIntegerInto(&q.N, 1, maxChoices)
	case "best_of":
		return true, d.ReadIntegerInto(&d.bestOf, 0, 20)
	case "max_tokens":
		return true, d.ReadIntegerInto(&q.MaxTokens, 1, strictjson.MaxCount)
	case "min_tokens":
		return true, d.ReadIntegerInto(&q.MinTokens, 0, strictjson.MaxCount)
	case "temperature":
		return true, d.ReadNumberInto(&q.Temperature, 0, 2)
	case "top_p":
		return true, d.ReadNumberInto(&q.TopP, 0, 1)
	case "min_p":
		return true, d.ReadNumberInto(&q.MinP, 0, 1)
	case "top_k":
		q.TopK = new(int)
		return true, d.ReadIntegerInto(q.TopK, -1, strictjson.MaxCount)
	case "presence_penalty":
		return true, d.ReadNumberInto(&q.PresencePenalty, -2, 2)
	case "frequency_penalty":
		return true, d.ReadNumberInto(&q.FrequencyPenalty, -2, 2)
	case "repetition_penalty":
		return true, d.readRepetitionPenalty()
	case "seed":
		n, err := d.ReadInt()
		seed := uint64(n)
		q.Seed = &seed
		return true, err
	case "logit_bias":
		return true, d.readLogitBias()
	case "stop":
		return true, d.readStop()
	case "stop_token_ids":
		var tokens []kv.Token
		err := d.readTokens(&tokens)
		if len(q.StopTokens) > 0 { // the tokens of "stop"
			tokens = slices.Concat(q.StopTokens, tokens)
		}
		if len(tokens) > 0 {
			q.StopTokens = tokens
		}
		return true, err
	case "ignore_eos":
		return true, d.ReadBoolInto(&q.IgnoreEOS)
	case "include_stop_str_in_output":
		return true, d.ReadBoolInto(&q.KeepStop)
	case "skip_special_tokens":
		skip := true
		err := d.ReadBoolInto(&skip)
		q.KeepSpecial = !skip
		return true, err
	case "cache_salt":
		return true, d.readCacheSalt(&q.CacheSalt)
	case "response_format":
		return true, d.readResponseFormat()
	case "guided_json":
		return true, d.readGuidedJSON()
	case "structured_outputs":
		return true, d.readStructuredOutputs()
	case "nvext":
		return true, d.ReadObject(d.readExtField)
	}
	return false, nil
}

func (d *requestDecoder) readStreamOption(key string) error {
	if none, err := d.ReadNull(); none || err != nil {
		return err
	}
	switch key {
	case "include_usage":
		return d.ReadBoolInto(&d.req.IncludeUsage)
	case "include_obfuscation":
		return d.readIgnoredBool()
	case "continuous_usage_stats":
		return d.ReadBoolInto(&d.req.ContinuousUsage)
	}
	return d.UnsupportedError()
}

// readChatField reads the fields which only chat requests have.
func (d *requestDecoder) readChatField(key string) (known bool, err error) {
	switch key {
	case "messages":
		d.messages = true
		return true, d.ReadArray("an array of messages", d.readMessage)
	case "max_completion_tokens":
		return true, d.ReadIntegerInto(&d.maxCompletion, 1, strictjson.MaxCount)
	case "logprobs":
		return true, d.ReadBoolInto(&d.logprobs)
	case "top_logprobs":
		return true, d.ReadIntegerInto(&d.topLogprobs, 0, 20)
	case "add_generation_prompt":
		err := d.ReadBoolInto(&d.req.AddGenerationPrompt)
		d.addGeneration = d.req.AddGenerationPrompt
		return true, err
	case "continue_final_message":
		return true, d.ReadBoolInto(&d.req.ContinueFinal)
	case "tools":
		return true, d.readTools()
	case "tool_choice":
		return true, d.readToolChoice()
	case "parallel_tool_calls":
		parallel := true
		err := d.ReadBoolInto(&parallel)
		d.req.OneCall = !parallel
		return true, err
	case "functions":
		return true, d.requireEmptyArray(useTools)
	case "function_call":
		return true, d.requireNoToolChoice(useToolChoice)
	case "chat_template_kwargs":
		return true, d.readTemplateArgs()
	case "reasoning_effort":
		return true, d.readReasoningEffort()
	case "include_reasoning":
		include := true
		err := d.ReadBoolInto(&include)
		d.req.HideReasoning = !include
		return true, err
	case "mm_processor_kwargs":
		return true, d.ReadObject(func(string) error {
			d.req.ProcessorArgs = true
			return d.SkipValue()
		})
	}
	return false, nil
}

// readCompletionField reads the fields which only completions requests have.
func (d *requestDecoder) readCompletionField(key string) (known bool, err error) {
	switch key {
	case "prompt":
		d.prompt = true
		return true, d.readPrompts(maxChoices)
	case "logprobs":
		return true, d.ReadIntegerInto(&d.req.Logprobs, 0, 5)
	case "echo":
		return true, d.ReadBoolInto(&d.req.Echo)
	case "suffix":
		return true, d.requireString("")
	case "tools", "functions":
		return true, d.requireEmptyArray(notSupported)
	case "tool_choice", "function_call":
		return true, d.requireNoToolChoice(notSupported)
	case "parallel_tool_calls", "include_reasoning":
		return true, d.readIgnoredBool()
	case "reasoning_effort":
		return true, d.requireString("none")
	case "chat_template_kwargs", "mm_processor_kwargs":
		return true, d.requireEmptyObject()
	}
	return false, nil
}

// checkRequest validates the request as a whole.
func (d *requestDecoder) checkRequest() error {
	q := d.req
	if err := d.unknown.Err(); err != nil {
		return err
	}
	if err := d.checkModel(); err != nil {
		return err
	}
	if d.maxCompletion > 0 {
		if q.MaxTokens > 0 && q.MaxTokens != d.maxCompletion {
			return fault.InvalidParam("max_completion_tokens", "'max_completion_tokens' (%d) and 'max_tokens' (%d) contradict each other: give one of them", d.maxCompletion, q.MaxTokens)
		}
		q.MaxTokens = d.maxCompletion
	}
	if q.MaxTokens > 0 && q.MinTokens > q.MaxTokens {
		return fault.InvalidParam("min_tokens", "'min_tokens' (%d) must not exceed 'max_tokens' (%d)", q.MinTokens, q.MaxTokens)
	}
	if d.streamOptions && !q.Stream {
		return fault.InvalidParam("stream_options", "'stream_options' is allowed only with 'stream': true")
	}
	if d.bestOf > 0 && d.bestOf < q.N {
		return fault.InvalidParam("best_of", "'best_of' (%d) must not be less than 'n' (%d)", d.bestOf, q.N)
	}
	if d.bestOf > q.N {
		return fault.InvalidParam("best_of", "'best_of' greater than 'n' is not supported: ask for n choices and pick one")
	}
	if err := d.checkExt(); err != nil {
		return err
	}
	if q.Endpoint == api.Chat {
		return d.checkChat()
	}
	return d.checkCompletion()
}

func (d *requestDecoder) checkChat() error {
	q := d.req
	if !d.messages || len(q.Messages) == 0 {
		return fault.InvalidParam("messages", "'messages' is required and must have at least one message")
	}
	if d.topLogprobs > 0 && !d.logprobs {
		return fault.InvalidParam("top_logprobs", "'top_logprobs' is allowed only with 'logprobs': true")
	}
	if d.logprobs {
		q.Logprobs = d.topLogprobs
	}
	if q.ContinueFinal {
		if d.addGeneration {
			return fault.InvalidParam("continue_final_message", "'continue_final_message' and 'add_generation_prompt' must not both be true")
		}
		q.AddGenerationPrompt = false
	}
	d.setTemplateArgs()
	return d.checkTools()
}

func (d *requestDecoder) checkCompletion() error {
	q := d.req
	if q.Ext.Tokens != nil {
		if len(q.Prompts) > 1 {
			return fault.InvalidParam("nvext.token_data", "'nvext.token_data' stands for one prompt, and 'prompt' has %d", len(q.Prompts))
		}
	} else if !d.prompt {
		return fault.InvalidParam("prompt", "'prompt' is required")
	}
	if len(q.Prompts) == 0 {
		q.Prompts = make([]api.Prompt, 1)
	}
	if all := len(q.Prompts) * q.N; all > maxChoices {
		return fault.InvalidParam("n", "%d prompts with 'n' = %d make %d choices; the limit is %d", len(q.Prompts), q.N, all, maxChoices)
	}
	if q.Echo && q.Logprobs >= 0 {
		return fault.InvalidParam("echo", "'echo' with 'logprobs' is not supported: log-probabilities of prompt tokens are not computed")
	}
	return nil
}
