package plan

import (
	"errors"
	"fmt"
	"slices"

	"penstock/core/rates"
)

// EngineModel predicts the times of one engine, in ms. Both grow with their arguments.
type EngineModel interface {
	// PrefillMs returns the time which a pass takes longer because it computes so many prompt tokens.
	PrefillMs(tokens float64) float64
	// StepMs returns the time of a pass in which so many sequences of a mean length of context tokens get a token.
	StepMs(sequences, context float64) float64
	// String names the model, for plans.
	String() string
}

// ReadyModel is an EngineModel which cannot predict from the start.
type ReadyModel interface {
	EngineModel
	// IsReady reports whether the model has learned enough.
	IsReady() bool
}

// EncoderModel predicts the time of encoders of media, in ms.
type EncoderModel interface {
	// EncodeMs returns the time in which a worker encodes media of so many tokens.
	EncodeMs(tokens float64) float64
}

var (
	_ EngineModel  = (*TableModel)(nil)
	_ ReadyModel   = RatesModel{}
	_ ReadyModel   = (*FittedModel)(nil)
	_ EncoderModel = (*EncoderTable)(nil)
)

func isReady(m EngineModel) bool {
	r, ok := m.(ReadyModel)
	return !ok || r.IsReady()
}

// firstReady returns the first model which is ready; the last one is, by Config.Validate.
func firstReady(models []EngineModel) EngineModel {
	for _, m := range models {
		if isReady(m) {
			return m
		}
	}
	return models[len(models)-1]
}

// TableModel is a model of measured times: straight lines between points, and beyond them the lines of the last two.
type TableModel struct {
	tokens, prefill []float64
	sequences       []float64
	contexts        []float64
	steps           [][]float64
}

// NewTableModel returns a model: prefill[i] is the time in ms of tokens[i] prompt tokens, and steps[i][j] the time of a
// step of sequences[i] sequences of contexts[j] tokens. It keeps the slices, which must not change. It returns an error
// unless all axes ascend and have a time for each point, from 0 to 1e9 ms.
func NewTableModel(tokens, prefill, sequences, contexts []float64, steps [][]float64) (*TableModel, error) {
	errs := []error{
		checkColumn("prefill", tokens, prefill), checkAxis("sequences", sequences), checkAxis("contexts", contexts),
	}
	if len(steps) != len(sequences) {
		errs = append(errs, fmt.Errorf("plan: the table of steps has %d rows for %d numbers of sequences", len(steps),
			len(sequences)))
	}
	for i, row := range steps {
		errs = append(errs, checkColumn(fmt.Sprintf("steps, row %d", i), contexts, row))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &TableModel{tokens, prefill, sequences, contexts, steps}, nil
}

func checkAxis(name string, points []float64) error {
	if len(points) == 0 {
		return fmt.Errorf("plan: table of %s: there are no points", name)
	}
	for i, x := range points {
		if !(x >= 0 && x <= 1e12) || i > 0 && !(x > points[i-1]) {
			return fmt.Errorf("plan: table of %s: point %d is %g: points must ascend, from 0 to 1e12", name, i, x)
		}
	}
	return nil
}

func checkColumn(name string, axis, times []float64) error {
	if err := checkAxis(name, axis); err != nil {
		return err
	}
	if len(times) != len(axis) {
		return fmt.Errorf("plan: table of %s: %d times for %d points", name, len(times), len(axis))
	}
	for i, ms := range times {
		if !(ms >= 0 && ms <= 1e9) {
			return fmt.Errorf("plan: table of %s: time %d is %g: must be from 0 to 1e9 ms", name, i, ms)
		}
	}
	return nil
}

// PrefillMs interpolates; it is not negative.
func (m *TableModel) PrefillMs(tokens float64) float64 {
	return interpolate(m.tokens, m.prefill, tokens)
}

// StepMs interpolates along the contexts in the two rows around sequences, then between the rows; it is not negative.
func (m *TableModel) StepMs(sequences, context float64) float64 {
	i, j := bracketIndexes(m.sequences, sequences)
	low := interpolate(m.contexts, m.steps[i], context)
	if i == j {
		return low
	}
	high := interpolate(m.contexts, m.steps[j], context)
	return max(lineThrough(m.sequences[i], low, m.sequences[j], high, sequences), 0)
}

// String names the model.
func (m *TableModel) String() string { return "table" }

// EncoderTable is a table of times of encoders.
type EncoderTable struct{ tokens, times []float64 }

// NewEncoderTable returns a table: times[i] is the time in ms of media of tokens[i] tokens. It keeps the slices, which
// must not change. Axes and times are as in NewTableModel.
func NewEncoderTable(tokens, times []float64) (*EncoderTable, error) {
	if err := checkColumn("encoders", tokens, times); err != nil {
		return nil, err
	}
	return &EncoderTable{tokens, times}, nil
}

// EncodeMs interpolates; it is not negative.
func (t *EncoderTable) EncodeMs(tokens float64) float64 {
	return interpolate(t.tokens, t.times, tokens)
}

// bracketIndexes returns the points of axis whose line applies to x: the points around it, or the two at the nearer
// end. They are equal if the axis has one point.
func bracketIndexes(axis []float64, x float64) (i, j int) {
	if len(axis) == 1 {
		return 0, 0
	}
	at, _ := slices.BinarySearch(axis, x)
	at = max(1, min(at, len(axis)-1))
	return at - 1, at
}

func interpolate(axis, values []float64, x float64) float64 {
	i, j := bracketIndexes(axis, x)
	if i == j {
		return values[i]
	}
	return max(lineThrough(axis[i], values[i], axis[j], values[j], x), 0)
}

func lineThrough(x0, y0, x1, y1, x float64) float64 {
	return y0 + float64((x-x0)*((y1-y0)/(x1-x0)))
}

// RatesModel is what a router or a decode worker has learned of a worker. Its steps depend on the share of the worker's
// blocks which are active.
type RatesModel struct {
	Learner *rates.Learner
	Worker  *rates.WorkerRates
	// CacheTokens are the tokens for which the worker has blocks.
	CacheTokens float64
}

// PrefillMs returns the learned time.
func (m RatesModel) PrefillMs(tokens float64) float64 { return m.Worker.PrefillMs(int(tokens + 0.5)) }

// StepMs returns the learned time.
func (m RatesModel) StepMs(sequences, context float64) float64 {
	return m.Worker.StepMs(float64(sequences*context) / m.CacheTokens)
}

// IsReady reports whether the rates are learned, and not assumed.
func (m RatesModel) IsReady() bool { return m.Learner.IsTrusted() }

// String names the model.
func (m RatesModel) String() string { return "learned rates" }
