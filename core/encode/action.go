package encode

import (
	"fmt"
	"strings"
)

// ActionKind says what an Action is.
type ActionKind uint8

// The kinds, with the fields which they use.
const (
	// RunBatch has Encoder encode Items in one run. FinishRun or FailRun follows, or LoseEncoder. The shell
	// allocates the memory of each item's rows, unless its encoder writes into the embedding cache.
	RunBatch ActionKind = iota + 1
	// AbortRun says that no request wants the rows of Run any more: Encoder should stop. FinishRun or FailRun follows
	// nevertheless; until then the run keeps its permits and its memory. LoseEncoder ends the runs of an encoder
	// which does not stop.
	AbortRun
	// RequestReady says that all objects of Request have rows. StageRequest may follow.
	RequestReady
	// CopyRows grants staging memory to Request, for all its rows: the shell copies the rows of Sources there.
	// MarkCopied follows, or ReleaseStaging after DropStaged.
	CopyRows
	// DropRows frees the memory of Rows. It means nothing if the shell has none by that name.
	DropRows
	// UnpinRows releases the pin on the embedding cache's rows of object Index of Request.
	UnpinRows
	// DropStaged says that Request has ended with staging memory. ReleaseStaging follows once nothing reads or
	// writes that memory or copies from the rows of Sources.
	DropStaged
	// RequestEnded is the last action of Request but for what frees its memory. Ending says how, Failures why.
	RequestEnded
)

// Action is one thing which the shell must do or know.
type Action struct {
	Kind     ActionKind
	Request  RequestID
	Index    int
	Run      RunID
	Encoder  EncoderID
	Rows     RowsID
	Items    []Item
	Sources  []RowSource
	Ending   Ending
	Failures []Failure // by the order in which they happened
}

// Item is an object in a run.
type Item struct {
	Request RequestID
	Index   int
	// Attempt is the number of the object's run, from 1.
	Attempt int
	// Rows names the memory for its rows.
	Rows RowsID
}

// RowSource is where the rows of an object are.
type RowSource struct {
	Index int
	// Rows names their memory; 0 if they are pinned in the embedding cache.
	Rows RowsID
}

// Ending is how a request has ended.
type Ending uint8

// The outcomes.
const (
	Completed Ending = iota + 1 // its media are in the KV cache, and it needs the rows no more
	Failed                      // objects could not be encoded
	Cancelled                   // CancelRequest was called
)

// String returns the outcome in words.
func (o Ending) String() string {
	return [...]string{"not ended", "completed", "failed", "cancelled"}[o]
}

// FailureKind says why an object has no rows.
type FailureKind uint8

// The kinds.
const (
	NotFailed      FailureKind = iota
	Corrupt                    // the object cannot be decoded: no encoder does better
	OutOfMemory                // it is too large for the encoder, alone in its run
	DeadlinePassed             // Timeout has passed
	EncoderLost                // MaxAttempts encoders were lost with it
	SizeDiffers                // the rows have another size than was estimated, so they do not fit into the prompt
	EncoderFailed              // the encoder failed for another reason, with the object alone in its run
	Unreachable                // the file of the object could not be fetched

	failureKinds = iota
)

// String returns the kind in words.
func (k FailureKind) String() string {
	return [...]string{"not failed", "corrupt", "out of memory", "deadline", "encoder lost", "size differs", "encoder failed", "unreachable"}[k]
}

// Failure is an object without rows, and why.
type Failure struct {
	Index  int
	Kind   FailureKind
	Detail string
}

// String returns the failure in words.
func (f Failure) String() string { return fmt.Sprintf("object %d: %v: %s", f.Index, f.Kind, f.Detail) }

// String returns the action in words.
func (e Action) String() string {
	var text strings.Builder
	switch e.Kind {
	case RunBatch:
		fmt.Fprintf(&text, "run %d on encoder %d:", e.Run, e.Encoder)
		for _, i := range e.Items {
			fmt.Fprintf(&text, " %d.%d", i.Request, i.Index)
			if i.Attempt > 1 {
				fmt.Fprintf(&text, " (attempt %d)", i.Attempt)
			}
			fmt.Fprintf(&text, " to rows %d", i.Rows)
		}
	case AbortRun:
		fmt.Fprintf(&text, "abort run %d on encoder %d", e.Run, e.Encoder)
	case RequestReady:
		fmt.Fprintf(&text, "request %d is ready", e.Request)
	case CopyRows:
		fmt.Fprintf(&text, "copy to staging for request %d:", e.Request)
		for _, s := range e.Sources {
			if s.Rows == 0 {
				fmt.Fprintf(&text, " %d from the cache", s.Index)
			} else {
				fmt.Fprintf(&text, " %d from rows %d", s.Index, s.Rows)
			}
		}
	case DropRows:
		fmt.Fprintf(&text, "drop rows %d", e.Rows)
	case UnpinRows:
		fmt.Fprintf(&text, "unpin %d.%d", e.Request, e.Index)
	case DropStaged:
		fmt.Fprintf(&text, "drop what is staged of request %d", e.Request)
	case RequestEnded:
		fmt.Fprintf(&text, "request %d has ended: %v", e.Request, e.Ending)
		for _, f := range e.Failures {
			fmt.Fprintf(&text, "; %v", f)
		}
	default:
		return "nothing"
	}
	return text.String()
}
