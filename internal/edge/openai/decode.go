// Package openai implements the wire format of the OpenAI API: strict decoding of chat, completion and
// embedding requests, and encoding of answers, streams and errors.
//
// The decoder knows every field of OpenAI and of other servers of that API. It implements a field, or accepts
// it because ignoring it cannot change the answer, or refuses it by name. It drops nothing silently.
package openai

import (
	"time"

	"penstock/core/fault"
	"penstock/internal/edge/api"
)

// Decode decodes the body of a request to a generation endpoint. The result does not reference body. The
// error is a *fault.Error of code Invalid which names the field.
func Decode(endpoint api.Endpoint, body []byte) (*api.Request, error) {
	d := &requestDecoder{BodyDecoder: api.BodyDecoder{Req: &api.Request{
		Endpoint:            endpoint,
		AddGenerationPrompt: true,
		N:                   1,
		Logprobs:            -1,
	}}}
	if err := tableOf(endpoint).DecodeBody(d, body); err != nil {
		return nil, err
	}
	if err := d.checkRequest(); err != nil {
		return nil, err
	}
	return d.Req, nil
}

// requestDecoder decodes one request. In addition to the request it keeps fields whose meaning depends on
// others.
type requestDecoder struct {
	api.BodyDecoder

	messages      bool // given
	prompt        bool // given
	streamOptions bool // given
	addGeneration bool // add_generation_prompt is given and true
	logprobs      bool // chat's logprobs, which top_logprobs requires
	greedSampling bool // nvext.greed_sampling
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

// checkRequest validates the request as a whole.
func (d *requestDecoder) checkRequest() error {
	q := d.Req
	if err := d.CheckModel(); err != nil {
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
	q := d.Req
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
	q := d.Req
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
