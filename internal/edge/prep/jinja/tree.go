package jinja

type (
	// expr is a node with a value.
	expr interface {
		eval(s *renderState, sc *scope) any
	}
	// stmt is a node which writes output or changes names.
	stmt interface {
		exec(s *renderState, sc *scope) jump
	}
	// jump says how a statement ended.
	jump uint8
)

const (
	jumpNone jump = iota
	jumpBreak
	jumpContinue
)

type (
	constExpr struct{ value any }
	nameExpr  struct {
		line int
		name string
	}
	nsExpr struct {
		line       int
		name, attr string
	}
	tupleExpr struct{ items []expr }
	listExpr  struct{ items []expr }
	dictExpr  struct{ keys, vals []expr }
	condExpr  struct {
		line                  int
		test, then, otherwise expr
	}
	logicExpr struct {
		or   bool
		a, b expr
	}
	notExpr     struct{ of expr }
	compareExpr struct {
		line  int
		first expr
		ops   []string
		rest  []expr
	}
	binaryExpr struct {
		line int
		op   string
		a, b expr
	}
	concatExpr struct{ items []expr }
	signExpr   struct {
		line  int
		minus bool
		of    expr
	}
	attrExpr struct {
		line int
		of   expr
		name string
	}
	itemExpr struct {
		line    int
		of, key expr
	}
	sliceExpr struct{ parts [3]expr } // nil for missing parts
	callExpr  struct {
		line   int
		callee expr
		args   argList
	}
	filterExpr struct {
		line int
		name string
		of   expr
		args argList
		call filterFunc
	}
	testExpr struct {
		line int
		name string
		of   expr
		args argList
		call testFunc
	}
	argList struct {
		items       []expr
		names       []string
		named       []expr
		star, stars expr
	}
)

type (
	textStmt  struct{ text string }
	printStmt struct {
		line int
		of   expr
	}
	groupStmt struct{ body []stmt }
	forStmt   struct {
		line            int
		target          expr
		iter, test      expr
		recursive       bool
		body, otherwise []stmt

		frame, elseFrame *frame
	}
	ifStmt struct {
		tests     []expr
		bodies    [][]stmt
		otherwise []stmt
	}
	setStmt struct {
		line   int
		target expr
		value  expr
	}
	setBlockStmt struct {
		line   int
		target expr
		filter *filterExpr
		body   []stmt
		frame  *frame
	}
	withStmt struct {
		targets, values []expr
		body            []stmt
		frame           *frame
	}
	macroDef struct {
		line                    int
		name                    string
		params                  []string
		defaults                []expr
		body                    []stmt
		frame                   *frame
		caller, kwargs, varargs bool
	}
	macroStmt struct{ def *macroDef }
	callStmt  struct {
		line int
		call *callExpr
		def  *macroDef
	}
	filterStmt struct {
		filter *filterExpr
		body   []stmt
		frame  *frame
	}
	generationStmt struct {
		body  []stmt
		frame *frame
	}
	jumpStmt jump
)
