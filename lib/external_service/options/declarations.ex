defmodule ExternalService.Options.Declarations do
  # Every option of the library, declared once: its type, its default and what it does.
  @moduledoc false

  # The longest time, in milliseconds, that still fits the core's clock of 64-bit nanoseconds: 292 years.
  @max_ms div(0x7FFF_FFFF_FFFF_FFFF, 1_000_000)
  # The longest time of a rate limit: its arithmetic counts fractions of a nanosecond.
  @max_per_ms div(Integer.pow(2, 60), 1_000_000)
  # The largest count the core takes.
  @max_count 0x7FFF_FFFF_FFFF_FFFF
  @count {:integer, 1, @max_count}

  # Named by text: these modules read the declarations, so this one must not depend on them.
  @retry_options Module.concat(["ExternalService.RetryOptions"])
  @local_breaker Module.concat(["ExternalService.CircuitBreaker.Local"])
  @local_limiter Module.concat(["ExternalService.RateLimiter.Local"])
  @virtual_clock Module.concat(["ExternalService.VirtualClock"])

  @ms {:integer, 0, @max_ms}
  @positive_ms {:integer, 1, @max_ms}
  # A share of one that is not nothing: the core counts in millionths.
  @share {:share, 1.0e-6, 1.0}

  @start [
    circuit_breaker: [
      type: {:options, :circuit_breaker},
      default: [],
      doc: "When calls are refused because the service is failing."
    ],
    retry: [
      type: {:or, [{:struct, @retry_options}, {:options, :retry}]},
      default: [],
      doc: "When and how failed attempts are repeated: options or an `ExternalService.RetryOptions` struct."
    ],
    rate_limit: [type: {:options, :rate_limit}, doc: "How many calls may go out in a time. Default: any number."],
    concurrency: [type: {:options, :concurrency}, doc: "How many calls may be in flight. Default: any number."],
    timeout: [
      type: {:or, [@positive_ms, {:in, [:infinity]}]},
      default: :infinity,
      doc:
        "Milliseconds an attempt may take. One that takes longer is ended and has failed. With it an attempt runs in a " <>
          "process of its own."
    ],
    deadline: [
      type: {:or, [@positive_ms, {:in, [:infinity]}]},
      default: :infinity,
      doc:
        "Milliseconds a whole call may take, its waits and retries included. With it, too, an attempt runs in a process " <>
          "of its own."
    ],
    fallback: [
      type: :fallback,
      doc:
        "What a call returns instead of an error: a function of the error, or of the error and a map with `:service`, " <>
          "`:attempts` and `:arguments`; the name of such a function in the module that uses the library; " <>
          "`{:value, term}`; or a list of `{exception module | function of the error | :any, fallback}`, tried in order. " <>
          "Default: `nil`, none."
    ],
    endpoints: [
      type: :endpoints,
      doc:
        "The hosts that serve the service: a list of terms, or a function that returns one. An element may be `{term, options}` " <>
          "with a `:weight` and other options of its own. Each has a breaker of its own."
    ],
    balancer: [
      type: :balancer,
      default: :round_robin,
      doc:
        "Which endpoint a call goes to: `:round_robin`, `:random`, `:least_busy`, or `{:hash, fun}` with a function of the " <>
          "call's `:key` that says what belongs together, or of no argument."
    ],
    max_ejected: [
      type: {:share, 0.0, 1.0},
      default: 0.5,
      doc: "The share of the endpoints, rounded down, that may be out at once because their breakers are open."
    ],
    max_instances: [
      type: {:integer, 1, 10_000_000},
      default: 10_000,
      doc: "How many `{service, key}` are remembered at once."
    ],
    idle_timeout: [
      type: {:or, [@positive_ms, {:in, [:infinity]}]},
      default: :infinity,
      doc: "Milliseconds after which a `{service, key}` that nobody uses may be forgotten, if its breaker is closed."
    ],
    sleep_function: [
      type: {:fun, 1},
      doc:
        "Called with the milliseconds of every wait for a retry or the rate limit. Default: the calling process sleeps, on " <>
          "the service's `:clock`."
    ],
    clock: [
      type: {:struct, @virtual_clock},
      doc: "A virtual clock to run on, so that tests do not wait. Default: the machine's monotonic clock."
    ],
    telemetry: [
      type: {:in, [:all, :changes]},
      default: :all,
      doc: "`:changes` leaves out the start, stop and exception events of each call."
    ]
  ]

  @circuit_breaker [
    tolerate: [
      type: {:or, [{:integer, 0, 1_000_000}, {:in, [:infinity]}]},
      doc:
        "Failures inside `:within` that leave the breaker closed; the next one opens it. `:infinity`: no such rule. " <>
          "Default: 10, and `:infinity` if another rule is given. Without any rule there is no breaker."
    ],
    within: [
      type: {:or, [@positive_ms, {:in, [:auto]}]},
      default: :auto,
      doc:
        "Milliseconds a failure counts for `:tolerate`. `:auto`: twice what whole calls that all fail need to get " <>
          "there, at least 10 seconds."
    ],
    failure_rate: [type: @share, doc: "Opens when this share of the calls in `:window`, or more, have failed."],
    slow_call: [type: @positive_ms, doc: "Milliseconds from which a call is slow."],
    slow_rate: [
      type: @share,
      doc:
        "Opens when this share of the calls in `:window`, or more, were slow. Default: 0.5 if there is a `:slow_call`."
    ],
    min_calls: [type: {:integer, 1, 1_000_000}, default: 20, doc: "Fewer calls than this in `:window` are no rate."],
    window: [
      type: :window,
      default: {:time, 60_000},
      doc: "What rates are counted over: `{:time, ms}` or the last `{:calls, n}`."
    ],
    consecutive: [
      type: {:integer, 1, 1_000_000},
      doc: "Opens after this many failures without a success between them."
    ],
    reset: [type: @ms, default: 60_000, doc: "Milliseconds an open breaker stays open."],
    reset_backoff: [
      type: {:options, :reset_backoff},
      doc: "Longer and longer open times while probes keep failing. Default: always `:reset`."
    ],
    reset_jitter: [
      type: {:share, 0.0, 1.0},
      default: 0.0,
      doc: "Spreads the open time around itself by this proportion, so that many nodes do not try again together."
    ],
    half_open: [
      type: {:or, [:boolean, {:options, :half_open}]},
      default: false,
      doc: "After the open time: `false` closes, `true` tries one call first, options say how many."
    ],
    ramp_up: [
      type: @positive_ms,
      doc:
        "Milliseconds, after closing by itself, in which the share of calls let through grows from a tenth to all. " <>
          "Those it refuses may try again at once: their `retry_after` is 0."
    ],
    melt: [
      type: {:in, [:per_attempt, :per_call]},
      default: :per_attempt,
      doc: "What counts as a failure: each failed attempt, or a call that has given up."
    ],
    fault_injection: [
      type: @share,
      doc: "Share of attempts to refuse on purpose, above 0.0 up to 1.0: for trying out how callers cope."
    ],
    backend: [
      type: {:backend, {:install, 2}},
      default: @local_breaker,
      doc: "A module with the `ExternalService.CircuitBreaker` behaviour, or `{module, options}`."
    ]
  ]

  @half_open [
    probes: [type: {:integer, 1, 1_000}, default: 1, doc: "Calls that may be out at once while half-open."],
    successes: [
      type: {:integer, 1, 1_000_000},
      doc: "Probes that have to succeed to close the breaker. Default: `:probes`."
    ],
    lease: [
      type: @positive_ms,
      doc: "Milliseconds after which a probe that has not come back is replaced. Default: `:reset`."
    ]
  ]

  @reset_backoff [
    factor: [type: {:share, 1.0, 1_000.0}, default: 2, doc: "How many times longer each time."],
    max: [type: @positive_ms, required: true, doc: "Milliseconds that the open time never exceeds."]
  ]

  @retry [
    backoff: [
      type: {:or, [{:in, [:exponential, :linear, :constant]}, {:list, @ms, 64}, {:fun, 1}]},
      default: :exponential,
      doc:
        "How delays grow: `:exponential` multiplies them by `:multiplier`, `:linear` adds `:increment`, `:constant` keeps " <>
          "`:base`; or a list of delays, of which the last one repeats; or a function of the number of the retry, from 1."
    ],
    base: [type: @ms, default: 10, doc: "Milliseconds before the first retry."],
    multiplier: [
      type: {:share, 1.0, 1_000.0},
      default: 2,
      doc: "How many times longer each `:exponential` delay is."
    ],
    increment: [
      type: @ms,
      doc: "How many milliseconds longer each `:linear` delay is. Default: `:factor` times `:base`."
    ],
    factor: [type: @count, default: 1, doc: "By how many times `:base` a `:linear` delay grows."],
    cap: [type: @positive_ms, doc: "The longest delay in milliseconds. Default: none."],
    expiry: [
      type: {:or, [@positive_ms, {:in, [:infinity]}]},
      doc:
        "Milliseconds, from the end of the first attempt, in which another may start; the last delay is trimmed to fit."
    ],
    max_attempts: [
      type: {:or, [{:integer, 1, @max_count}, {:in, [:infinity]}]},
      default: 5,
      doc: "How many attempts a call makes at most, the first one included."
    ],
    jitter: [
      type: {:or, [:boolean, {:share, 0.0, 1.0}, {:in, [:full, :decorrelated]}]},
      default: false,
      doc:
        "Spreads each delay around itself by this proportion; `true`: 0.1. `:full` draws it from 0 up to itself. " <>
          "`:decorrelated` draws it from `:base` up to three times the delay before, whatever the `:backoff`."
    ],
    retry_after_max: [
      type: @ms,
      doc:
        "The longest wait, in milliseconds, that a `{:retry_after, ms, reason}` gets. Default: `:cap`, or 30 seconds."
    ],
    budget: [
      type: {:or, [:boolean, {:options, :budget}]},
      default: false,
      doc:
        "Bounds the retries of all calls together: `true`, or how. When it is empty a call keeps what its last attempt " <>
          "gave. It is the service's: a call can not bring its own."
    ],
    retry_on: [
      type: {:fun, 1},
      doc: "A function of the result; when it returns a truthy value the attempt has failed with that result."
    ],
    retry_exceptions: [
      type: {:or, [{:list, :module}, {:fun, 1}]},
      default: [],
      doc: "Exception modules, or a function of the exception, that say which raised exceptions are retried."
    ]
  ]

  @endpoint [
    weight: [type: {:integer, 1, 1_000}, default: 1, doc: "Its share of the calls, compared with the others'."],
    circuit_breaker: [type: {:options, :circuit_breaker}, doc: "On top of the service's."],
    concurrency: [
      type: {:options, :concurrency},
      doc: "On top of the service's; of no effect where that is one for all endpoints together."
    ]
  ]

  @budget [
    ratio: [type: {:share, 0.0, 1.0}, default: 0.2, doc: "Retries that each successful attempt pays for."],
    min_per_second: [
      type: {:integer, 0, 1_000_000},
      default: 10,
      doc: "Retries a second that there are besides. Ten seconds' worth can be saved up."
    ]
  ]

  @rate_limit [
    limit: [
      type: {:or, [{:integer, 0, @max_count}, {:in, [:infinity]}]},
      required: true,
      doc: "Calls that may go out in `:per`, all at once if none did before. `0` refuses all, `:infinity` none."
    ],
    per: [type: {:integer, 1, @max_per_ms}, required: true, doc: "The time, in milliseconds, for `:limit` calls."],
    wait: [
      type: {:or, [{:in, [false, :infinity]}, :non_neg_integer]},
      doc: "How long, in milliseconds, a call waits for its turn. Default: `:per`, at most 5 seconds."
    ],
    backend: [
      type: {:backend, {:init, 2}},
      default: @local_limiter,
      doc: "A module with the `ExternalService.RateLimiter` behaviour, or `{module, options}`."
    ]
  ]

  @concurrency [
    limit: [type: {:integer, 1, 1_000_000}, required: true, doc: "Calls that may be in flight at once."],
    wait: [
      type: {:or, [{:in, [false]}, @ms]},
      default: false,
      doc: "How long, in milliseconds, a call waits for a slot."
    ],
    per: [
      type: {:in, [:service, :endpoint]},
      default: :service,
      doc: "Whether the limit holds for all endpoints together or for each."
    ],
    queue: [
      type: {:or, [{:integer, 0, 0xFFFFFF}, {:in, [:infinity]}]},
      default: :infinity,
      doc: "Calls that may wait at once."
    ],
    reclaim_after: [
      type: @positive_ms,
      doc: "Milliseconds after which a slot may be taken from a call that still holds it. Default: never."
    ]
  ]

  @open [
    reason: [type: :any, doc: "Why, for those who see it. Default: `nil`."],
    for: [
      type: {:or, [@positive_ms, {:in, [:infinity]}]},
      default: :infinity,
      doc:
        "For how many milliseconds; then it is as if an open time were over. `:infinity`: until it is closed by hand."
    ]
  ]

  @call [
    cost: [type: @count, default: 1, doc: "What the call takes from the rate limit."],
    timeout: [type: @start[:timeout][:type], doc: "Milliseconds each attempt may take."],
    deadline: [type: @start[:deadline][:type], doc: "Milliseconds the call may take."],
    fallback: [type: :fallback, doc: "What the call returns instead of an error; `nil`: the error."],
    key: [type: :any, doc: "What the call is about, for a `{:hash, fun}` balancer."],
    endpoint: [type: :any, doc: "The endpoint to call, and no other."]
  ]

  @insights [
    services: [type: {:list, :any}, doc: "The services to count. Default: all that are started now."],
    log: [type: :boolean, default: true, doc: "Whether to log what is found."],
    log_every: [
      type: @ms,
      default: 300_000,
      doc: "Milliseconds before something is logged of the same service again."
    ]
  ]

  @simulate [
    max_calls: [type: @count, doc: "Calls at most. Default: 100; any number for a trace, or with a time to simulate."],
    max_attempts: [type: @count, default: 1_000_000, doc: "Attempts at most, refused ones included."],
    for: [type: @start[:timeout][:type], doc: "Milliseconds. Default: until the breaker opens, or a trace ends."],
    clients: [type: {:integer, 1, 100_000}, default: 1, doc: "Callers, each making one call after the other."],
    rate: [type: {:share, 1.0e-6, 1.0e9}, doc: "Calls a second of all clients together. Default: no pauses."],
    seed: [
      type: {:integer, 0, @max_count},
      doc: "Of jitter and chance. Default: 0; no jitter for one client without `:rate`."
    ]
  ]

  @schemas %{
    start: @start,
    circuit_breaker: @circuit_breaker,
    half_open: @half_open,
    reset_backoff: @reset_backoff,
    retry: @retry,
    budget: @budget,
    endpoint: @endpoint,
    rate_limit: @rate_limit,
    concurrency: @concurrency,
    open: @open,
    call: @call,
    insights: @insights,
    simulate: @simulate
  }

  @doc "Returns the declarations of each group of options."
  @spec all() :: %{atom() => keyword(keyword())}
  def all, do: @schemas
end
