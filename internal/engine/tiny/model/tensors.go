package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"penstock/internal/engine/tiny/checkpoint"
)

// Tensor is a weight in memory, row-major.
type Tensor = checkpoint.Tensor

// Tensors is the source of a model's weights. *checkpoint.Checkpoint and Map implement it.
type Tensors interface {
	// Names returns the names of all weights.
	Names() []string
	// Tensor returns one of them. The model does not keep or change its memory.
	Tensor(name string) (Tensor, error)
}

// Map is Tensors held in memory, by name.
type Map map[string]Tensor

var (
	_ Tensors = Map(nil)
	_ Tensors = (*checkpoint.Checkpoint)(nil)
)

// Names returns the names, sorted.
func (m Map) Names() []string { return slices.Sorted(maps.Keys(m)) }

// Tensor returns the tensor called name.
func (m Map) Tensor(name string) (Tensor, error) {
	t, ok := m[name]
	if !ok {
		return Tensor{}, fmt.Errorf("model: tensor %.100q is missing", name)
	}
	return t, nil
}

// renamedTensors are the weights of a vision model under the names of [Config.Specs], which most files use;
// some newer files put the decoder and the encoder under a common prefix.
type renamedTensors struct{ Tensors }

// newPrefixes are the prefixes of newer files, and the older ones.
func newPrefixes() [][2]string {
	return [][2]string{{"model.language_model.", "model."}, {"model.visual.", "visual."}}
}

// Names returns the names in their older form.
func (o renamedTensors) Names() []string {
	names := o.Tensors.Names()
	old := make([]string, len(names))
	for i, name := range names {
		old[i] = name
		for _, p := range newPrefixes() {
			if rest, ok := strings.CutPrefix(name, p[0]); ok {
				old[i] = p[1] + rest
			}
		}
	}
	return old
}

// Tensor returns one weight, under either of its names.
func (o renamedTensors) Tensor(name string) (Tensor, error) {
	t, err := o.Tensors.Tensor(name)
	if err == nil {
		return t, nil
	}
	for _, p := range newPrefixes() {
		rest, ok := strings.CutPrefix(name, p[1])
		if !ok {
			continue
		}
		if t, other := o.Tensors.Tensor(p[0] + rest); other == nil {
			return t, nil
		}
	}
	return Tensor{}, err
}
