package replay

import (
	"strings"

	"penstock/core/kv"
)

// commonWords returns the vocabulary of generated text: 256 short English words. Each is one token in common
// vocabularies together with the space before it.
func commonWords() []string {
	return strings.Fields(`
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which
one you were all her she there would their we him been has when who will no more if out so up said what its
about than into them can only other time new some could these two may first then do any like my now over such
our man me even most made after also did many before must through back years where much your way well down
should because each just those people too how little state good very make world still see own work long here
get both between life being under never day same another know year while last might us great old go come since
against right came take used himself few house use place during high without again home around small however
found part school thought went say once general upon war left every got does fact end set night head four late
almost hand nothing far white second side put took find better look city room power book family point child
money story month lot study eye job word business issue kind service friend father hour game line member law
car community name president team minute idea body information ago lead social whether watch together follow
parent stop face anything create public already speak others read level allow add office spend door health
person art sure history party within grow
`)
}

// AppendText appends the prompt of r as text, for servers without token ids. Text is copied. Any other prompt
// becomes a word with a space before it for each token of [AppendTokens], about a token each, so that prompts
// share text exactly where they share tokens. Another seed gives other text.
func AppendText(dst []byte, r *Request, seed uint64) []byte {
	if r.Text != "" {
		return append(dst, r.Text...)
	}
	list := commonWords()
	tokens := AppendTokens(nil, r, Vocabulary{High: kv.Token(len(list)), Seed: seed})
	for _, t := range tokens {
		dst = append(dst, ' ')
		dst = append(dst, list[int(t)%len(list)]...) // Tokens of a file may be any
	}
	return dst
}
