package openai

// Schemas of structured request fields. A member which is null counts as not given, whatever its name. Every
// reference is to one of components.
const (
	messagesSchema = `{"type":"array","minItems":1,"maxItems":65536,"items":{"$ref":"#/components/schemas/Message"}}`
	toolsSchema    = `{"type":"array","maxItems":1536,"items":{"$ref":"#/components/schemas/Tool"}}`

	toolChoiceSchema = `{"anyOf":[{"enum":["none","auto","required"]},{"$ref":"#/components/schemas/FunctionName"},` +
		`{"type":"object","additionalProperties":{"type":"null"},"required":["type","allowed_tools"],"properties":{"type":{"const":"allowed_tools"},` +
		`"allowed_tools":{"type":"object","additionalProperties":{"type":"null"},"required":["mode","tools"],"properties":{"mode":{"enum":["auto","required"]},` +
		`"tools":{"type":"array","minItems":1,"maxItems":1536,"items":{"$ref":"#/components/schemas/FunctionName"}}}}}}]}`

	responseFormatSchema = `{"anyOf":[` +
		`{"type":"object","additionalProperties":{"type":"null"},"required":["type"],"properties":{"type":{"enum":["text","json_object"]},"json_schema":{"type":"null"}}},` +
		`{"type":"object","additionalProperties":{"type":"null"},"required":["type","json_schema"],"properties":{"type":{"const":"json_schema"},` +
		`"json_schema":{"type":"object","additionalProperties":{"type":"null"},"required":["name","schema"],"properties":{` +
		`"name":{"type":"string","pattern":"^[a-zA-Z0-9_-]{1,64}$"},"description":{"type":["string","null"]},` +
		`"schema":{"$ref":"#/components/schemas/JSONSchema"},"strict":{"type":["boolean","null"]}}}}}]}`

	schemaOrText = `{"anyOf":[{"$ref":"#/components/schemas/JSONSchema"},{"type":"string","contentMediaType":"application/schema+json"}]}`

	structuredOutputsSchema = `{"type":"object","additionalProperties":{"type":"null"},"properties":{` +
		`"json":{"anyOf":[` + schemaOrText + `,{"type":"null"}]},"json_object":{"type":["boolean","null"]},` +
		`"disable_fallback":{"enum":[false,null]},"disable_any_whitespace":{"enum":[false,null]},"disable_additional_properties":{"enum":[false,null]},` +
		`"regex":{"type":"null"},"choice":{"type":"null"},"grammar":{"type":"null"},"structural_tag":{"type":"null"},"whitespace_pattern":{"type":"null"}},` +
		`"anyOf":[{"required":["json"],"properties":{"json":{"not":{"type":"null"}},"json_object":{"enum":[false,null]}}},` +
		`{"required":["json_object"],"properties":{"json_object":{"const":true},"json":{"type":"null"}}}]}`
)

// component is a schema which others reference by name.
type component struct{ name, schema string }

// components returns the schemas of requests and answers. The schemas of answers are closed: they list every
// member which this package prints.
func components() []component {
	const (
		text       = `{"type":"string"}`
		integer    = `{"type":"integer"}`
		number     = `{"type":"number"}`
		textOrNull = `{"type":["string","null"]}`
		head       = `"id":` + text + `,"created":` + integer + `,"model":` + text + `,"system_fingerprint":` + textOrNull + `,"nvext":{"$ref":"#/components/schemas/AnswerExt"}`
		headNames  = `"id","object","created","model","system_fingerprint","choices"`
		mediaURL   = `{"type":"string","pattern":"^([hH][tT][tT][pP][sS]?|[dD][aA][tT][aA]):"}`
		detail     = `{"enum":["auto","low","high","original"]}`
		closed     = `"type":"object","additionalProperties":false,`
		open       = `"type":"object","additionalProperties":{"type":"null"},` // null counts as not given

		workerNames   = `"prefill_worker_id","prefill_dp_rank","decode_worker_id","decode_dp_rank"`
		workerMembers = `"prefill_worker_id":` + integer + `,"prefill_dp_rank":` + integer + `,"decode_worker_id":` + integer + `,"decode_dp_rank":` + integer
	)
	ref := func(name string) string { return `{"$ref":"#/components/schemas/` + name + `"}` }
	orNull := func(schema string) string { return `{"anyOf":[` + schema + `,{"type":"null"}]}` }
	list := func(schema string) string { return `{"type":"array","items":` + schema + `}` }
	return []component{
		{"Error", `{` + closed + `"required":["error"],"properties":{"error":{` + closed + `"required":["message","type","param","code"],` +
			`"properties":{"message":` + text + `,"type":` + text + `,"param":` + textOrNull + `,"code":` + text + `}}}}`},

		// Requests.
		{"JSONSchema", `{"anyOf":[{"type":"object"},{"const":true}]}`},
		{"Message", `{` + open + `"required":["role"],"properties":{` +
			`"role":{"enum":["system","developer","user","assistant","tool","function"]},` +
			`"content":{"anyOf":[{"type":["string","null"]},` + list(ref("ContentPart")) + `]},"name":` + textOrNull + `,` +
			`"tool_calls":` + orNull(list(ref("ToolCall"))) + `,"tool_call_id":` + textOrNull + `,"reasoning_content":` + textOrNull + `,` +
			`"reasoning":` + textOrNull + `,"refusal":` + textOrNull + `,"annotations":{},"function_call":{"type":"null"},"audio":{"type":"null"}},` +
			`"anyOf":[{"properties":{"role":{"const":"assistant"}}},{"required":["content"],"properties":{"content":{"not":{"type":"null"}}}}]}`},
		{"ContentPart", `{` + open + `"required":["type"],"properties":{` +
			`"type":{"enum":["text","refusal","image_url","image","input_image","video_url","audio_url","input_audio"]},"text":` + textOrNull + `,` +
			`"refusal":` + textOrNull + `,"image_url":` + orNull(ref("MediaURL")) + `,"image":` + orNull(ref("MediaURL")) + `,"video_url":` + orNull(ref("MediaURL")) + `,` +
			`"audio_url":` + orNull(ref("MediaURL")) + `,"input_audio":{"type":["object","null"]},"detail":` + orNull(detail) + `,` +
			`"uuid":{"type":["string","null"],"minLength":1,"maxLength":512},"prompt_cache_breakpoint":{},"cache_control":{}},` +
			`"anyOf":[{"required":["text"],"properties":{"type":{"const":"text"},"text":` + text + `}},` +
			`{"required":["refusal"],"properties":{"type":{"const":"refusal"},"refusal":` + text + `}},` +
			`{"required":["image_url"],"properties":{"type":{"enum":["image_url","input_image"]},"image_url":` + ref("MediaURL") + `}},` +
			`{"required":["image"],"properties":{"type":{"const":"image"},"image":` + ref("MediaURL") + `}},` +
			`{"required":["video_url"],"properties":{"type":{"const":"video_url"},"video_url":` + ref("MediaURL") + `}},` +
			`{"required":["audio_url"],"properties":{"type":{"const":"audio_url"},"audio_url":` + ref("MediaURL") + `}},` +
			`{"required":["input_audio"],"properties":{"type":{"const":"input_audio"},"input_audio":{` + open + `"required":["data","format"],` +
			`"properties":{"data":{"type":"string","minLength":1},"format":{"type":"string","pattern":"^[a-zA-Z0-9.+-]{1,32}$"}}}}}]}`},
		{"MediaURL", `{"anyOf":[` + mediaURL + `,{` + open + `"required":["url"],"properties":{"url":` + mediaURL + `,"detail":` + orNull(detail) + `}}]}`},
		{"Tool", `{"type":"object","required":["type","function"],"properties":{"type":{"const":"function"},"function":{"type":"object","required":["name"],` +
			`"properties":{"name":{"type":"string","pattern":"^[a-zA-Z0-9_.-]{1,96}$"},"description":` + textOrNull + `,` +
			`"parameters":{"type":["object","null"],"properties":{"type":{"anyOf":[{"const":"object"},{"not":{"type":"string"}}]}}},"strict":{"type":["boolean","null"]}}}}}`},
		{"FunctionName", `{` + open + `"required":["type","function"],"properties":{"type":{"const":"function"},` +
			`"function":{` + open + `"required":["name"],"properties":{"name":{"type":"string","minLength":1}}}}}`},
		{"ToolCall", `{"type":"object","required":["id","type","function"],"properties":{"id":` + text + `,"type":{"const":"function"},` +
			`"function":{"type":"object","required":["name","arguments"],"properties":{"name":{"type":"string","minLength":1},"arguments":` + text + `}}}}`},

		// Answers.
		{"ChatCompletion", `{` + closed + `"required":[` + headNames + `,"usage"],"properties":{` + head + `,"object":{"const":"chat.completion"},` +
			`"choices":` + list(`{`+closed+`"required":["index","message","logprobs","finish_reason"],"properties":{"index":`+integer+`,`+
			`"message":`+ref("AssistantMessage")+`,"logprobs":`+orNull(ref("ChatLogprobs"))+`,"finish_reason":`+ref("FinishReason")+`}}`) + `,` +
			`"usage":` + ref("Usage") + `}}`},
		{"AssistantMessage", `{` + closed + `"required":["role","content","refusal"],"properties":{"role":{"const":"assistant"},"content":` + textOrNull + `,` +
			`"refusal":{"type":"null"},"reasoning_content":` + text + `,"tool_calls":` + list(ref("AnswerCall")) + `}}`},
		{"AnswerCall", `{` + closed + `"required":["id","type","function"],"properties":{"id":` + text + `,"type":{"const":"function"},` +
			`"function":{` + closed + `"required":["name","arguments"],"properties":{"name":` + text + `,"arguments":` + text + `}}}}`},
		{"ChatCompletionChunk", `{` + closed + `"required":[` + headNames + `],"properties":{` + head + `,"object":{"const":"chat.completion.chunk"},` +
			`"choices":` + list(`{`+closed+`"required":["index","delta","logprobs","finish_reason"],"properties":{"index":`+integer+`,`+
			`"delta":`+ref("Delta")+`,"logprobs":`+orNull(ref("ChatLogprobs"))+`,"finish_reason":`+ref("FinishReason")+`}}`) + `,` +
			`"usage":` + orNull(ref("Usage")) + `}}`},
		{"Delta", `{` + closed + `"properties":{"role":{"const":"assistant"},"content":` + text + `,"reasoning_content":` + text + `,` +
			`"tool_calls":` + list(`{`+closed+`"required":["index","function"],"properties":{"index":`+integer+`,"id":`+text+`,"type":{"const":"function"},`+
			`"function":{`+closed+`"required":["arguments"],"properties":{"name":`+text+`,"arguments":`+text+`}}}}`) + `}}`},
		{"FinishReason", `{"enum":["stop","length","tool_calls",null]}`},
		{"ChatLogprobs", `{` + closed + `"required":["content","refusal"],"properties":{"refusal":{"type":"null"},` +
			`"content":` + list(`{`+closed+`"required":["token","logprob","bytes","top_logprobs"],"properties":{`+tokenMembers+`,`+
			`"top_logprobs":`+list(`{`+closed+`"required":["token","logprob","bytes"],"properties":{`+tokenMembers+`}}`)+`}}`) + `}}`},
		{"Completion", `{` + closed + `"required":[` + headNames + `],"properties":{` + head + `,"object":{"const":"text_completion"},` +
			`"choices":` + list(`{`+closed+`"required":["index","text","logprobs","finish_reason"],"properties":{"index":`+integer+`,"text":`+text+`,`+
			`"logprobs":`+orNull(ref("CompletionLogprobs"))+`,"finish_reason":`+ref("FinishReason")+`}}`) + `,"usage":` + orNull(ref("Usage")) + `}}`},
		{"CompletionLogprobs", `{` + closed + `"required":["tokens","token_logprobs","top_logprobs","text_offset"],"properties":{"tokens":` + list(text) + `,` +
			`"token_logprobs":` + list(number) + `,"top_logprobs":` + orNull(list(`{"type":"object","additionalProperties":`+number+`}`)) + `,` +
			`"text_offset":` + list(integer) + `}}`},
		{"Usage", `{` + closed + `"required":["prompt_tokens","completion_tokens","total_tokens","completion_tokens_details"],` +
			`"properties":{"prompt_tokens":` + integer + `,"completion_tokens":` + integer + `,"total_tokens":` + integer + `,` +
			`"prompt_tokens_details":{` + closed + `"required":["cached_tokens"],"properties":{"cached_tokens":` + integer + `}},` +
			`"completion_tokens_details":{` + closed + `"required":["reasoning_tokens"],"properties":{"reasoning_tokens":` + integer + `}}}}`},
		{"AnswerExt", `{` + closed + `"properties":{"attempts":` + integer + `,"workers":` +
			list(`{`+closed+`"required":["prompt","attempt","worker_id","dp_rank","overlap_blocks","predicted_cached_tokens"],"properties":{"prompt":`+integer+`,"attempt":`+integer+`,`+
				`"worker_id":`+integer+`,"dp_rank":`+integer+`,"overlap_blocks":`+integer+`,"predicted_cached_tokens":`+integer+`,"reported_cached_tokens":`+integer+`,"inexact":{"const":true}}}`) + `,` +
			`"worker_id":{` + closed + `"required":[` + workerNames + `],"properties":{` + workerMembers + `}},` +
			`"overlap_blocks":` + integer + `,"token_ids":` + list(integer) + `,"text_only":` + text + `,` +
			`"media_dropped":` + list(`{`+closed+`"required":["index","kind"],"properties":{"index":`+integer+`,"kind":`+text+`}}`) + `,` +
			`"media_halved":` + list(`{`+closed+`"required":["index","times"],"properties":{"index":`+integer+`,"times":`+integer+`}}`) + `,` +
			`"request_id":` + text + `,"formatted_prompt":` + text + `,` +
			`"llm_metrics":{` + closed + `"required":["input_tokens","output_tokens","chunk_tokens","cached_tokens",` + workerNames + `],"properties":{` +
			`"input_tokens":` + integer + `,"output_tokens":` + integer + `,"chunk_tokens":` + integer + `,"cached_tokens":` + orNull(integer) + `,` + workerMembers + `}}}}`},
		{"Embeddings", `{` + closed + `"required":["object","data","model","usage"],"properties":{"object":{"const":"list"},"model":` + text + `,` +
			`"data":` + list(`{`+closed+`"required":["object","index","embedding"],"properties":{"object":{"const":"embedding"},"index":`+integer+`,`+
			`"embedding":{"anyOf":[`+list(number)+`,{"type":"string","contentEncoding":"base64"}]}}}`) + `,` +
			`"usage":{` + closed + `"required":["prompt_tokens","total_tokens"],"properties":{"prompt_tokens":` + integer + `,"total_tokens":` + integer + `}}}}`},
		{"Tokenized", `{` + closed + `"required":["count","max_model_len","tokens","token_strs"],"properties":{"count":` + integer + `,` +
			`"max_model_len":` + integer + `,"tokens":` + list(integer) + `,"token_strs":` + orNull(list(text)) + `}}`},
		{"Detokenized", `{` + closed + `"required":["prompt"],"properties":{"prompt":` + text + `}}`},
		{"Model", `{` + closed + `"required":["id","object","created","owned_by","root","max_model_len"],"properties":{"id":` + text + `,` +
			`"object":{"const":"model"},"created":` + integer + `,"owned_by":` + text + `,"root":` + text + `,"parent":` + text + `,"max_model_len":` + integer + `}}`},
		{"Models", `{` + closed + `"required":["object","data"],"properties":{"object":{"const":"list"},"data":` + list(ref("Model")) + `}}`},
	}
}

const tokenMembers = `"token":{"type":"string"},"logprob":{"type":"number"},"bytes":{"type":"array","items":{"type":"integer","minimum":0,"maximum":255}}`

// answerSchemas returns the names of the components which describe the successful answers of a path of this
// package: of a whole answer, and of each event of a stream. Both are "" for other paths.
func answerSchemas(path string) (whole, event string) {
	switch path {
	case "/v1/chat/completions":
		return "ChatCompletion", "ChatCompletionChunk"
	case "/v1/completions":
		return "Completion", "Completion"
	case "/v1/embeddings":
		return "Embeddings", ""
	case "/tokenize":
		return "Tokenized", ""
	case "/detokenize":
		return "Detokenized", ""
	case "/v1/models":
		return "Models", ""
	case "/v1/models/{id}":
		return "Model", ""
	}
	return "", ""
}
