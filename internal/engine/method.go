package engine

// The methods that a worker serves on the request plane.
const (
	// MethodGenerate takes a Request and answers with Delta frames.
	MethodGenerate = "generate"
	// MethodPing takes nothing and answers with one frame, a Pong as JSON.
	MethodPing = "ping"
)

// Pong is a worker's answer to a ping: it is there, and this is its state.
type Pong struct {
	LoadReport
	InFlight int `json:"in_flight"` // calls being served
}
