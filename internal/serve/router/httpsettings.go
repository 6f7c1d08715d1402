package router

import (
	"net/http"

	"penstock/core/fault"
	"penstock/core/route"
	"penstock/internal/edge/openai"
)

// modelSettings is a path of the API under which settings of models are read and changed while the router runs: B is the
// body which changes them, and R the JSON of those in force. A change holds in this router until it stops, also when
// the model has no worker for a while.
type modelSettings[B, R any] struct {
	path string
	// model returns the model which a body names, and validate refuses values out of bounds, naming the field.
	model    func(*B) string
	validate func(*B) error
	// row and change are called with mu held. change changes what the body gives.
	row    func(*modelPool) R
	change func(*modelPool, *B) error
}

// serve reads and changes the settings.
func (s *modelSettings[B, R]) serve(r *Router, w http.ResponseWriter, req *http.Request) error {
	switch req.Method {
	case http.MethodGet, http.MethodHead:
		model := req.URL.Query().Get("model")
		if model == "" {
			return writeJSON(w, newRowsAnswer(s.listRows(r)))
		}
		return s.answer(r, w, model, nil)
	case http.MethodPost:
	default:
		openai.WriteMethodNotAllowed(w, req, "GET, HEAD, POST")
		return nil
	}
	var body B
	if err := r.readJSON(w, req, &body); err != nil {
		return err
	}
	model := s.model(&body)
	if model == "" {
		return fault.InvalidParam("model", "model is missing: GET %s lists those that there are", s.path)
	}
	if err := s.validate(&body); err != nil {
		return err
	}
	return s.answer(r, w, model, &body)
}

// answer changes the settings of a model, unless body is nil, and answers with those in force then.
func (s *modelSettings[B, R]) answer(r *Router, w http.ResponseWriter, model string, body *B) error {
	row, err := s.changeModel(r, model, body)
	if err != nil {
		return err
	}
	return writeJSON(w, row)
}

func (s *modelSettings[B, R]) changeModel(r *Router, model string, body *B) (row R, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, _ := r.poolLocked(model)
	if p == nil {
		return row, unknownModel(model)
	}
	if body != nil {
		if err := s.change(p, body); err != nil {
			return row, err
		}
	}
	return s.row(p), nil
}

// listRows returns the settings of all models.
func (s *modelSettings[B, R]) listRows(r *Router) []R {
	r.mu.Lock()
	defer r.mu.Unlock()
	table := []R{}
	for _, p := range r.mu.pools {
		if p.role == route.ServingWorkers {
			table = append(table, s.row(p))
		}
	}
	return table
}
