package engine

// The methods that a worker serves on the request plane.
const (
	// MethodGenerate takes a Request and answers with Delta frames.
	MethodGenerate = "generate"
	// MethodEmbed takes an EmbedRequest and answers with one frame, an Embedding,
	// if the model card says that the engine makes them.
	MethodEmbed = "embed"
	// MethodPreprocess takes a PreprocessRequest and answers with one frame, a
	// Preprocessed, if the model card says that the engine makes prompts.
	MethodPreprocess = "preprocess"
	// MethodPing takes nothing and answers with one frame, a Pong as JSON.
	MethodPing = "ping"
	// MethodDescribe takes nothing and answers with one frame, a Description as
	// JSON; a worker that leaves refuses it with Draining.
	MethodDescribe = "describe"
)

// Pong is a worker's answer to a ping: it is there, and this is its state.
type Pong struct {
	LoadReport
	InFlight int `json:"in_flight"` // calls being served
}
