package prep

// ContentRule says in which form the content of messages reaches a model's own chat template. Engines that
// render templates differ in it, and a prompt made here must be the one that the engine itself would make
// of the conversation: the cache knows it by its tokens.
type ContentRule uint8

// The rules. A list is a JSON array of parts, {"type":"text","text":…} for texts.
const (
	// ContentVLLM: a list, also of a text alone, where the template has a loop over the content; else the
	// texts of the parts joined by newlines. What tools say is always a text.
	ContentVLLM ContentRule = iota
	// ContentSGLang: parts stay a list where the template has a loop over the content or is one for
	// media, else their texts are joined by spaces; a text stays one. What tools say is always a text.
	ContentSGLang
	// ContentTRTLLM: texts, joined by newlines, whatever the template.
	ContentTRTLLM
	// ContentLlamaCpp: texts, joined by newlines, unless the template shows nothing but lists.
	ContentLlamaCpp
)

// ContentRuleOf returns the rule of an engine by the name that model cards have for it. External says that
// the engine is a server of another make; the engines of this one, and those that are not known, have
// vLLM's rule.
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
