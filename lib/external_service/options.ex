defmodule ExternalService.Options do
  # Every option of the library, declared once: its type, its default and what it does. Validation, the option lists in
  # the documentation and the tests all read these declarations.
  @moduledoc false

  alias ExternalService.Options.Type

  # The longest time, in milliseconds, that still fits the core's clock of 64-bit nanoseconds: 292 years.
  @max_ms div(0x7FFF_FFFF_FFFF_FFFF, 1_000_000)
  # The longest time of a rate limit: its arithmetic counts fractions of a nanosecond.
  @max_per_ms div(Integer.pow(2, 60), 1_000_000)
  # The largest count the core takes.
  @max_count 0x7FFF_FFFF_FFFF_FFFF

  # Named by text: these modules read the declarations, so this one must not depend on them.
  @retry_options Module.concat(["ExternalService.RetryOptions"])
  @local_breaker Module.concat(["ExternalService.CircuitBreaker.Local"])
  @local_limiter Module.concat(["ExternalService.RateLimiter.Local"])
  @virtual_clock Module.concat(["ExternalService.VirtualClock"])

  @ms {:integer, 0, @max_ms}
  @positive_ms {:integer, 1, @max_ms}

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
    rate_limit: [
      type: {:options, :rate_limit},
      doc: "How many calls may go out in a time. Default: any number."
    ],
    concurrency: [
      type: {:options, :concurrency},
      doc: "How many calls may be in flight. Default: any number."
    ],
    sleep_function: [
      type: {:fun, 1},
      doc: "Called with the milliseconds of every wait. Default: the calling process sleeps, on the service's `:clock`."
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
      default: 10,
      doc: "Failures inside the window that leave the breaker closed; the next one opens it. `:infinity`: no breaker."
    ],
    within: [
      type: {:or, [@positive_ms, {:in, [:auto]}]},
      default: :auto,
      doc:
        "Milliseconds a failure counts. `:auto`: twice what calls that all fail need to get there, at least 10 seconds."
    ],
    reset: [
      type: @ms,
      default: 60_000,
      doc: "Milliseconds an open breaker stays open."
    ],
    melt: [
      type: {:in, [:per_attempt, :per_call]},
      default: :per_attempt,
      doc: "What counts as a failure: each failed attempt, or a call that has given up."
    ],
    fault_injection: [
      type: {:share, 1.0e-6, 1.0},
      doc: "Share of attempts to refuse on purpose, above 0.0 up to 1.0: for trying out how callers cope."
    ],
    backend: [
      type: {:backend, {:install, 2}},
      default: @local_breaker,
      doc: "A module with the `ExternalService.CircuitBreaker` behaviour, or `{module, options}`."
    ]
  ]

  @retry [
    backoff: [
      type: {:in, [:exponential, :linear]},
      default: :exponential,
      doc: "How delays grow: `:exponential` doubles them, `:linear` adds `:factor` times `:base`."
    ],
    base: [type: @ms, default: 10, doc: "Milliseconds before the first retry."],
    factor: [
      type: {:integer, 1, @max_count},
      default: 1,
      doc: "By how many times `:base` a `:linear` delay grows."
    ],
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
      type: {:or, [:boolean, {:share, 0.0, 1.0}]},
      default: false,
      doc: "Spreads each delay around itself by this proportion. `true`: 0.1."
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

  @call [
    cost: [type: {:integer, 1, @max_count}, default: 1, doc: "What the call takes from the rate limit."]
  ]

  @schemas %{
    start: @start,
    circuit_breaker: @circuit_breaker,
    retry: @retry,
    rate_limit: @rate_limit,
    concurrency: @concurrency,
    call: @call
  }

  @type group :: :start | :circuit_breaker | :retry | :rate_limit | :concurrency | :call

  @doc "Returns the names of the groups."
  @spec groups() :: [group()]
  def groups, do: Map.keys(@schemas)

  @doc "Returns the declarations of one group of options."
  @spec schema(group()) :: keyword(keyword())
  def schema(group), do: Map.fetch!(@schemas, group)

  @doc "Returns `options` with defaults filled in, or raises on the first that does not fit its declaration."
  @spec validate!(group(), term(), [atom()]) :: keyword()
  def validate!(group, options, path \\ []) do
    schema = schema(group)
    check_given!(group, options, path)
    check_required!(schema, options, path)

    for {key, declared} <- schema, {:ok, value} <- [pick(options, key, declared)] do
      {key, expand(declared[:type], value, path ++ [key])}
    end
  end

  @doc "Raises on the first of `options` that does not fit its declaration; says nothing about those left out."
  @spec check_given!(group(), term(), [atom()]) :: :ok
  def check_given!(group, options, path \\ []) do
    schema = schema(group)

    unless Keyword.keyword?(options),
      do: raise_invalid("expected a keyword list of options, got: #{inspect(options)}", nil, options, path)

    Enum.each(options, fn {key, value} ->
      case Keyword.fetch(schema, key) do
        {:ok, declared} -> check!(declared[:type], key, value, path)
        :error -> raise_unknown(options, schema, path)
      end
    end)
  end

  @doc """
  Returns `options` with `overrides` on top.

  Keyword lists are merged key by key, at every depth, and so are maps; anything else is replaced.
  """
  @spec merge(term(), term()) :: term()
  def merge([{_, _} | _] = options, []), do: options

  def merge([{_, _} | _] = options, [{_, _} | _] = overrides),
    do: Keyword.merge(options, overrides, fn _key, old, new -> merge(old, new) end)

  def merge(options, overrides)
      when is_map(options) and is_map(overrides) and not is_struct(options) and not is_struct(overrides),
      do: Map.merge(options, overrides, fn _key, old, new -> merge(old, new) end)

  def merge(_options, overrides), do: overrides

  @doc "Returns the Markdown list of a group's options, for a module's documentation."
  @spec docs(group()) :: String.t()
  def docs(group) do
    Enum.map_join(schema(group), "\n", fn {key, declared} ->
      default = if Keyword.has_key?(declared, :default), do: " Default: `#{inspect(declared[:default])}`."
      "  * `#{inspect(key)}` (#{Type.describe(declared[:type])}) - #{declared[:doc]}#{default}"
    end)
  end

  defp check_required!(schema, options, path) do
    for {key, declared} <- schema, declared[:required], not Keyword.has_key?(options, key) do
      received = inspect(Keyword.keys(options))
      raise_invalid("required #{inspect(key)} option not found, received options: #{received}", key, nil, path)
    end
  end

  defp pick(options, key, declared) do
    with :error <- Keyword.fetch(options, key), do: Keyword.fetch(declared, :default)
  end

  # Nested options get their own defaults.
  defp expand({:options, group}, value, path), do: validate!(group, value, path)
  defp expand(_type, value, _path), do: value

  # Nested options are checked with their own path, so that the error names the option and not the group around it.
  defp check!(type, key, value, path) do
    case nested_group(type) do
      group when group != nil and is_list(value) -> check_nested!(group, type, key, value, path)
      _plain -> check_type!(type, key, value, path)
    end
  end

  defp nested_group({:options, group}), do: group
  defp nested_group({:or, types}), do: Enum.find_value(types, &nested_group/1)
  defp nested_group(_type), do: nil

  defp check_nested!(group, type, key, value, path) do
    if Keyword.keyword?(value),
      do: check_given!(group, value, path ++ [key]),
      else: check_type!(type, key, value, path)
  end

  defp check_type!(type, key, value, path) do
    unless Type.valid?(type, value) do
      expected = "expected #{Type.describe(type)}, got: #{inspect(value)}"
      raise_invalid("invalid value for #{inspect(key)} option: #{expected}", key, value, path)
    end
  end

  defp raise_unknown(options, schema, path) do
    unknown = options |> Keyword.keys() |> Enum.uniq() |> Enum.reject(&Keyword.has_key?(schema, &1))
    valid = inspect(Keyword.keys(schema), limit: :infinity)
    raise_invalid("unknown options #{inspect(unknown)}, valid options are: #{valid}", unknown, nil, path)
  end

  @spec raise_invalid(String.t(), term(), term(), [atom()]) :: no_return()
  defp raise_invalid(message, key, value, path) do
    module =
      if Code.ensure_loaded?(NimbleOptions.ValidationError),
        do: NimbleOptions.ValidationError,
        else: ExternalService.ValidationError

    raise struct(module, message: message, key: key, value: value, keys_path: path)
  end
end
