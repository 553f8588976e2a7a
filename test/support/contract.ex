# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Contract do
  @moduledoc """
  What external_service 3.0 offers to applications, held against the code: the tables of guides/migrating.md.

  The lists are of the package, in its order; what is said about this library is read off its modules and declarations.
  """

  alias ExternalService.{CircuitBreaker, Concurrency, Insights, Options, RateLimiter, RetryOptions, Telemetry}

  defmodule Using do
    @moduledoc "Has what `use ExternalService` gives to a module."
    use ExternalService
  end

  @functions [
    {ExternalService,
     [start: 1, start: 2, stop: 1, call: 2, call: 3, call!: 2, call!: 3, call_async: 2, call_async: 3] ++
       [call_async_stream: 3, call_async_stream: 4, call_async_stream: 5, available?: 1, blown?: 1, saturated?: 1] ++
       [rate_limited?: 1, all_available?: 1, reset: 1, reset_all: 1, explain: 1, simulate: 2, simulate: 3]},
    {Using,
     [child_spec: 0, child_spec: 1, start_link: 0, start_link: 1, call: 1, call: 2, call!: 1, call!: 2] ++
       [call_async: 1, call_async: 2, call_async_stream: 2, call_async_stream: 3, call_async_stream: 4] ++
       [available?: 0, blown?: 0, saturated?: 0, reset: 0, reset_all: 0]},
    {RetryOptions, [new: 1, merge: 2, window: 1]},
    {CircuitBreaker, [ask: 1, melt: 1, reset: 1]},
    {CircuitBreaker.Fuse, [strategy: 1, tolerate: 1]},
    {CircuitBreaker.Cluster, [remote_trip: 1, remote_reset: 1]},
    {RateLimiter, [peek: 1, reset: 1, request: 1]},
    {RateLimiter.Hammer, [default_key: 1]},
    {Concurrency, [in_flight: 1, limit: 1, reset: 1]},
    {Insights, [attach: 0, attach: 1, detach: 0, report: 1]},
    {ExternalService.Flow, [map: 3, map: 4, map: 5]},
    {ExternalService.Test,
     [trip_breaker: 1, exhaust_rate_limit: 1, record_events: 0, record_events: 1, assert_retried: 1] ++
       [assert_retried: 2, refute_retried: 1, refute_retried: 2, assert_breaker_blown: 1, assert_breaker_blown: 2] ++
       [assert_throttled: 1, assert_throttled: 2, recording_sleep: 0, recording_sleep: 1, assert_slept: 1]},
    {ExternalService.Test.Coverage, [attach: 0, detach: 0, install_reporter: 0, entries: 0, report: 0, reset: 0]}
  ]

  @callbacks [
    {CircuitBreaker, [install: 2, ask: 2, melt: 2, reset: 2, remove: 2]},
    {RateLimiter, [init: 2, check: 2, peek: 2, reset: 2]}
  ]

  @options [
    start: [:circuit_breaker, :rate_limit, :concurrency, :retry, :sleep_function],
    circuit_breaker: [:tolerate, :melt, :within, :reset, :fault_injection, :backend],
    rate_limit: [:limit, :per, :wait, :backend],
    concurrency: [:limit, :reclaim_after, :wait],
    retry: [:backoff, :base, :factor, :cap, :expiry, :max_attempts, :jitter, :retry_on, :retry_exceptions],
    insights: [:services, :log, :log_every]
  ]

  @events [
    [:call, :start],
    [:call, :stop],
    [:call, :exception],
    [:call, :retry],
    [:circuit_breaker, :blown],
    [:rate_limit, :sleep],
    [:concurrency, :rejected],
    [:concurrency, :waited]
  ]

  # Each with its status for HTTP, and whether it may be retried.
  @errors [
    {ExternalService.RetriesExhausted, 503, false},
    {ExternalService.CircuitBreakerOpen, 503, true},
    {ExternalService.RateLimited, 429, true},
    {ExternalService.ServiceSaturated, 503, true},
    {ExternalService.ServiceNotStarted, 500, false}
  ]

  @errors_here [ExternalService.AttemptTimeout, ExternalService.DeadlineExceeded, ExternalService.NoEndpoint]

  @doc "The tables, by their titles."
  @spec tables() :: [{String.t(), String.t()}]
  def tables do
    [
      {"functions", table("in", for({module, there} <- @functions, do: functions(module, there)))},
      {"callbacks", table("behaviour", for({module, there} <- @callbacks, do: callbacks(module, there)))},
      {"options", table("options of", for({group, there} <- @options, do: options(group, there)))},
      {"events", table("events", [events()])},
      {"errors",
       table("error", for({module, status, retry?} <- @errors, do: error(module, status, retry?)) ++ new_errors())}
    ]
  end

  @doc "The modules that lack functions of the package."
  @spec missing() :: [String.t()]
  def missing, do: for({module, _there} <- @functions, missing(module) != [], do: inspect(module))

  @doc "The functions of the package that a module lacks."
  @spec missing(module()) :: keyword(arity())
  def missing(module) do
    {^module, there} = List.keyfind(@functions, module, 0)
    if Code.ensure_loaded?(module), do: Enum.reject(there, &exported?(module, &1)), else: there
  end

  defp table(of, rows) do
    head = ["| #{of} | there and here | only there | only here |", "| --- | --- | --- | --- |"]
    Enum.map_join(head ++ rows, &(&1 <> "\n"))
  end

  defp row(of, there, here, show), do: row(of, Enum.filter(there, &(&1 in here)), there -- here, here -- there, show)

  defp row(of, both, there, here, show) do
    cells = for list <- [both, there, here], do: Enum.map_join(list, ", ", show)
    Enum.join(["| #{of}" | cells], " | ") <> " |"
  end

  defp functions(Using, there) do
    here = for {name, arity} <- Using.__info__(:functions), not hidden?(name), do: {name, arity}
    row("a module with `use ExternalService`", there, here, &name/1)
  end

  defp functions(module, there) do
    row(code(module), there, Enum.uniq((there -- missing(module)) ++ documented(module)), &name/1)
  end

  defp exported?(module, {name, arity}), do: function_exported?(module, name, arity)
  defp hidden?(name), do: name |> Atom.to_string() |> String.starts_with?("__")

  defp documented(module) do
    with {:docs_v1, _, _, _, _, _, docs} <- Code.fetch_docs(module) do
      for {{:function, name, arity}, _, _, doc, meta} <- docs,
          doc != :hidden,
          arity <- (arity - Map.get(meta, :defaults, 0))..arity,
          do: {name, arity}
    else
      {:error, _none} -> []
    end
  end

  defp callbacks(module, there), do: row(code(module), there, Enum.sort(module.behaviour_info(:callbacks)), &name/1)

  defp options(group, there), do: row("`#{group}`", there, Keyword.keys(Options.schema(group)), &"`#{&1}`")

  defp events do
    here = for [:external_service | event] <- Telemetry.events(), do: event
    row("`[:external_service, ...]`", @events, here, &code/1)
  end

  # What is not as there would stand in the third and fourth columns.
  defp error(module, status, retry?) do
    error = module.exception([])
    row(code(module), [status(status, retry?)], [status(module.http_status(error), module.retryable?(error))], & &1)
  end

  defp new_errors do
    for module <- @errors_here do
      error = module.exception([])
      row(code(module), [], [status(module.http_status(error), module.retryable?(error))], & &1)
    end
  end

  defp status(http, true), do: "#{http} retryable"
  defp status(http, false), do: "#{http}"

  defp name({name, arity}), do: "`#{name}/#{arity}`"
  defp code(term), do: "`#{inspect(term)}`"
end
