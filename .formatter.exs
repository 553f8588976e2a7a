calls = [
  call: 1,
  call: 2,
  call!: 1,
  call!: 2,
  call_async: 1,
  call_async: 2,
  call_async_stream: 2,
  call_async_stream: 3,
  call_async_stream: 4,
  external_call: 1,
  external_call: 2,
  external_call!: 1,
  external_call!: 2,
  external_call_async: 1,
  external_call_async: 2,
  external_call_async_stream: 2,
  external_call_async_stream: 3,
  external_call_async_stream: 4
]

[
  inputs: ["{mix,.formatter}.exs", "{lib,test,bench,examples}/**/*.{ex,exs}"],
  line_length: 120,
  locals_without_parens: calls,
  export: [locals_without_parens: calls]
]
