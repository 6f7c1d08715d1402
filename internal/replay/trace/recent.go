package trace

// recentMap is a bounded map: it keeps the last recentKeys keys which were set, and at most twice as many.
type recentMap[V any] struct {
	young, old map[string]V
}

const recentKeys = 1 << 19

func (m *recentMap[V]) get(key string) (V, bool) {
	v, ok := m.young[key]
	if !ok {
		v, ok = m.old[key]
	}
	return v, ok
}

func (m *recentMap[V]) set(key string, v V) {
	if len(m.young) >= recentKeys {
		m.old, m.young = m.young, nil
	}
	if m.young == nil {
		m.young = map[string]V{}
	}
	m.young[key] = v
}
