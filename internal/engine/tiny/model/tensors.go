package model

import (
	"fmt"
	"maps"
	"slices"

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
