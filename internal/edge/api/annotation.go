package api

import (
	"strconv"
	"strings"

	"penstock/core/kv"
	"penstock/internal/strictjson"
)

// Names of annotations, as in NVIDIA Dynamo. A colon and a value may follow; only QueryInstance distinguishes
// whether there is a value.
const (
	QueryInstance   = "query_instance_id"
	FormattedPrompt = "formatted_prompt"
	TokenIDs        = "token_ids"
	LLMMetrics      = "llm_metrics"
	RequestID       = "request_id"
)

// AnnotationNames lists the supported annotations.
func AnnotationNames() []string {
	return []string{QueryInstance, FormattedPrompt, TokenIDs, LLMMetrics, RequestID}
}

// Annotations are the annotations of a request.
type Annotations struct {
	// Query asks which worker would serve the request, without sending it.
	Query QueryForm
	// The others request an event of a stream, or a member of a whole answer's nvext.
	FormattedPrompt, TokenIDs, LLMMetrics, RequestID bool
}

// QueryForm is the form of the answer to QueryInstance in a stream.
type QueryForm uint8

// The forms.
const (
	NoQuery     QueryForm = iota
	QueryEvents           // "query_instance_id": two events, as Dynamo before 1.0
	QueryChunk            // "query_instance_id:VALUE": nvext of one chunk, as Dynamo 1.x
)

// Add adds an annotation. It reports whether the annotation is one of AnnotationNames.
func (a *Annotations) Add(annotation string) bool {
	name, _, valued := strings.Cut(annotation, ":")
	switch name {
	case QueryInstance:
		form := QueryEvents
		if valued {
			form = QueryChunk
		}
		a.Query = max(a.Query, form)
	case FormattedPrompt:
		a.FormattedPrompt = true
	case TokenIDs:
		a.TokenIDs = true
	case LLMMetrics:
		a.LLMMetrics = true
	case RequestID:
		a.RequestID = true
	default:
		return false
	}
	return true
}

// FirstAnnotation returns the name of the first annotation in the order of AnnotationNames; "" if there is
// none.
func (a Annotations) FirstAnnotation() string {
	for i, asked := range []bool{a.Query != NoQuery, a.FormattedPrompt, a.TokenIDs, a.LLMMetrics, a.RequestID} {
		if asked {
			return AnnotationNames()[i]
		}
	}
	return ""
}

// Annotated holds the answers to a request's annotations. Members which were not requested are zero.
type Annotated struct {
	RequestID string
	Prompt    *string    // the text that became the prompt's tokens
	Tokens    []kv.Token // of the prompt
	Metrics   *Metrics
}

// Metrics answers LLMMetrics after the answer is complete.
type Metrics struct {
	Counts TokenCounts
	// Worker is that of the last attempt, and Prefill the one which computed the prompt for it; zero if it did itself.
	Worker, Prefill kv.Worker
}

// AppendMembers appends the answers as members of an object, each preceded by a comma.
func (a *Annotated) AppendMembers(dst []byte) []byte {
	if a == nil {
		return dst
	}
	if a.RequestID != "" {
		dst = strictjson.AppendString(append(dst, `,"request_id":`...), a.RequestID)
	}
	if a.Prompt != nil {
		dst = strictjson.AppendString(append(dst, `,"formatted_prompt":`...), *a.Prompt)
	}
	if a.Tokens != nil {
		dst = strictjson.AppendTokens(append(dst, `,"token_ids":`...), a.Tokens)
	}
	if a.Metrics != nil {
		dst = a.Metrics.Append(append(dst, `,"llm_metrics":`...))
	}
	return dst
}

// Append appends the metrics as an object with the members of Dynamo's annotation. They describe the whole
// answer, as if it were one chunk.
func (m *Metrics) Append(dst []byte) []byte {
	number := func(name string, n int64) {
		dst = append(append(append(dst, '"'), name...), `":`...)
		dst = append(strconv.AppendInt(dst, n, 10), ',')
	}
	dst = append(dst, '{')
	number("input_tokens", int64(m.Counts.Prompt))
	number("output_tokens", int64(m.Counts.Completion))
	number("chunk_tokens", int64(m.Counts.Completion))
	if m.Counts.Cached == CachedUnknown {
		dst = append(dst, `"cached_tokens":null,`...)
	} else {
		number("cached_tokens", int64(m.Counts.Cached))
	}
	dst = appendWorkerMembers(dst, m.Prefill, m.Worker)
	return append(dst, '}')
}

// AppendExt appends the member "nvext" of an answer, preceded by a comma; nothing if x is nil.
func AppendExt(dst []byte, x *AnswerExt) []byte {
	if x == nil {
		return dst
	}
	if x.Query != nil {
		return appendQueryAnswer(dst, x)
	}
	dst = strictjson.AppendInt(dst, `,"nvext":{"attempts":`, len(x.Attempts))
	dst = append(dst, `,"workers":[`...)
	for i, a := range x.Attempts {
		dst = strictjson.AppendComma(dst, i)
		dst = appendAttempt(dst, a)
	}
	dst = append(dst, ']')
	if n := len(x.Attempts); x.WorkerFields && n > 0 {
		dst = append(dst, ',')
		dst = appendWorkerFields(dst, x.Attempts[n-1].Prefill, x.Attempts[n-1].Worker)
	}
	dst = appendMediaMembers(dst, x)
	return append(x.Annotated.AppendMembers(dst), '}')
}

// appendMediaMembers appends what happened to the request's media, each member preceded by a comma.
func appendMediaMembers(dst []byte, x *AnswerExt) []byte {
	for i, m := range x.MediaDropped {
		if i == 0 {
			dst = append(dst, `,"media_dropped":[`...)
		}
		dst = strictjson.AppendComma(dst, i)
		dst = strictjson.AppendInt(dst, `{"index":`, m.Index)
		dst = append(strictjson.AppendMember(dst, `,"kind":`, m.Kind), '}')
		if i == len(x.MediaDropped)-1 {
			dst = append(dst, ']')
		}
	}
	for i, m := range x.MediaHalved {
		if i == 0 {
			dst = append(dst, `,"media_halved":[`...)
		}
		dst = strictjson.AppendComma(dst, i)
		dst = strictjson.AppendInt(dst, `{"index":`, m.Index)
		dst = append(strictjson.AppendInt(dst, `,"times":`, m.Times), '}')
		if i == len(x.MediaHalved)-1 {
			dst = append(dst, ']')
		}
	}
	return dst
}

func appendAttempt(dst []byte, a Attempt) []byte {
	dst = strictjson.AppendInt(dst, `{"prompt":`, a.Prompt)
	dst = append(dst, `,"attempt":`...)
	dst = strconv.AppendUint(dst, uint64(a.Number), 10)
	dst = append(dst, `,"worker_id":`...)
	dst = strconv.AppendUint(dst, uint64(a.Worker.ID), 10)
	dst = append(dst, `,"dp_rank":`...)
	dst = strconv.AppendUint(dst, uint64(a.Worker.Rank), 10)
	dst = strictjson.AppendInt(dst, `,"overlap_blocks":`, a.OverlapBlocks)
	dst = strictjson.AppendInt(dst, `,"predicted_cached_tokens":`, a.Predicted)
	if a.Reported != CachedUnknown {
		dst = strictjson.AppendInt(dst, `,"reported_cached_tokens":`, a.Reported)
	}
	if a.Inexact {
		dst = append(dst, `,"inexact":true`...)
	}
	return append(dst, '}')
}

func appendWorkerFields(dst []byte, prefill, decode kv.Worker) []byte {
	dst = append(dst, `"worker_id":{`...)
	return append(appendWorkerMembers(dst, prefill, decode), '}')
}

// appendWorkerMembers appends the prefill and the decode worker, which is the prefill worker too if that is zero.
func appendWorkerMembers(dst []byte, prefill, decode kv.Worker) []byte {
	if prefill.ID == 0 {
		prefill = decode
	}
	dst = strconv.AppendUint(append(dst, `"prefill_worker_id":`...), uint64(prefill.ID), 10)
	dst = strconv.AppendUint(append(dst, `,"prefill_dp_rank":`...), uint64(prefill.Rank), 10)
	dst = strconv.AppendUint(append(dst, `,"decode_worker_id":`...), uint64(decode.ID), 10)
	dst = strconv.AppendUint(append(dst, `,"decode_dp_rank":`...), uint64(decode.Rank), 10)
	return dst
}

func appendQueryAnswer(dst []byte, x *AnswerExt) []byte {
	q := x.Query
	dst = append(dst, `,"nvext":{`...)
	dst = appendWorkerFields(dst, kv.Worker{}, q.Worker)
	dst = strictjson.AppendInt(dst, `,"overlap_blocks":`, q.OverlapBlocks)
	dst = append(dst, `,"token_ids":`...)
	dst = strictjson.AppendTokens(dst, q.Tokens)
	if q.TextOnly != "" {
		dst = strictjson.AppendMember(dst, `,"text_only":`, q.TextOnly)
	}
	dst = appendMediaMembers(dst, x)
	return append(x.Annotated.AppendMembers(dst), '}')
}
