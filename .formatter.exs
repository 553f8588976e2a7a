calls = [call: 1, call: 2, call!: 1, call!: 2]

[
  inputs: ["{mix,.formatter}.exs", "{lib,test,bench,examples}/**/*.{ex,exs}"],
  line_length: 120,
  locals_without_parens: calls,
  export: [locals_without_parens: calls]
]
