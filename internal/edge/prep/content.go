package prep

// ContentRule selects the form in which message content reaches a model's own chat template. Engines differ
// in it, and a prompt made here must equal the one which the engine itself would make: the cache is keyed by
// tokens.
type ContentRule uint8

// The rules. A list is a JSON array of parts; a text is {"type":"text","text":…}.
const (
	// ContentVLLM: a list, even for a single text, where the template loops over the content; otherwise the
	// texts of the parts joined by newlines. The content of a tool message is always a text.
	ContentVLLM ContentRule = iota
	// ContentSGLang: parts stay a list where the template loops over the content or mentions media; otherwise
	// their texts are joined by spaces. A text stays a text, and so does the content of a tool message.
	ContentSGLang
	// ContentTRTLLM: texts joined by newlines, whatever the template.
	ContentTRTLLM
	// ContentLlamaCpp: texts joined by newlines, unless the template renders lists only.
	ContentLlamaCpp
)

// ContentRuleOf returns the rule of an engine by its name in model cards. External reports that the engine is
// not Penstock's own. Penstock's engines and unknown ones follow vLLM's rule.
func ContentRuleOf(engine string) (rule ContentRule, external bool) {
	switch engine {
	case "vllm":
		return ContentVLLM, true
	case "sglang":
		return ContentSGLang, true
	case "trtllm":
		return ContentTRTLLM, true
	case "llamacpp":
		return ContentLlamaCpp, true
	}
	return ContentVLLM, false
}
