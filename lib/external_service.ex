defmodule ExternalService do
  alias ExternalService.CircuitBreaker.Installed
  alias ExternalService.{Async, Call, CircuitBreaker, Concurrency, Counts, Definition, Explanation, Lifecycle, Options}
  alias ExternalService.{Endpoints, RateLimiter, RetryOptions, Service, Simulation, Validation}

  @moduledoc """
  Calls to things that fail: with retries, a circuit breaker, a rate limit and a concurrency limit in front of them.

      defmodule MyApp.Mail do
        use ExternalService,
          circuit_breaker: [tolerate: 15, within: :timer.seconds(10), reset: :timer.seconds(5)],
          retry: [base: 100, cap: :timer.seconds(2), max_attempts: 5, jitter: true]

        def deliver(mail) do
          call fn ->
            case MyApp.Client.post("/mails", mail) do
              {:ok, %{status: 200} = response} -> {:ok, response}
              {:ok, %{status: status}} when status >= 500 -> {:retry, status}
              other -> other
            end
          end
        end
      end

  Put `MyApp.Mail` under a supervisor and it is started with the application. Without a module,
  `start/2` and `call/3` do the same under any name:

      iex> ExternalService.start("mail", retry: [max_attempts: 2, base: 0])
      :ok
      iex> ExternalService.call("mail", fn -> {:ok, :sent} end)
      {:ok, :sent}
      iex> {:error, error} = ExternalService.call("mail", fn -> {:retry, :busy} end)
      iex> {error.__struct__, error.context}
      {ExternalService.RetriesExhausted, %{service: "mail", reason: :busy, attempts: 2}}
      iex> ExternalService.stop("mail")
      :ok

  ## What a call passes

  Outermost first: telemetry span, fallback, deadline, retry loop, circuit breaker, rate limit, concurrency limit, attempt
  timeout, the function, the classification of its result, the report to the breaker. A refusal ends the call: it is not
  retried, it is no failure, and what outer layers gave is given back.

  ## Options of a service

  #{Options.docs(:start)}

  See `ExternalService.CircuitBreaker`, `ExternalService.RetryOptions`, `ExternalService.RateLimiter` and
  `ExternalService.Concurrency` for theirs. Defaults for every service come from the application environment; a service's
  own options are merged over them:

      config :external_service, defaults: [circuit_breaker: [melt: :per_call]]

  Options that are allowed and yet hardly what anybody wants are told, with what to write in their place, when a service is
  started and when a module that uses `ExternalService` is compiled; `explain/1` shows them, too:

      config :external_service, on_suspicious_config: :warn

  `:warn` (the default) logs them, or has the compiler warn; `:raise` raises an `ArgumentError` before anything has
  changed; `:ignore` says nothing.
  """

  @typedoc "The name of a service: any term."
  @type service :: term()

  @typedoc "What a function given to `call/3` returns: a failure to be retried, or its result."
  @type retriable_function_result :: :retry | {:retry, reason :: term()} | term()

  @typedoc "One with an argument gets the endpoint, or the key of `{service, key}`."
  @type retriable_function :: (() -> retriable_function_result()) | (term() -> retriable_function_result())
  @type sleep_function :: (non_neg_integer() -> any())
  @type melt :: :per_attempt | :per_call
  @type options :: keyword()

  @type retry :: RetryOptions.t() | keyword()
  @type mapper :: (term() -> retriable_function_result())
  @type scenario :: Simulation.scenario()
  @type state :: :closed | :open | :half_open | :forced_open | :bypassed

  @type retries_exhausted :: {:error, ExternalService.RetriesExhausted.t()}
  @type circuit_breaker_open :: {:error, ExternalService.CircuitBreakerOpen.t()}
  @type service_not_started :: {:error, ExternalService.ServiceNotStarted.t()}
  @type rate_limited :: {:error, ExternalService.RateLimited.t()}
  @type out_of_time :: {:error, ExternalService.AttemptTimeout.t() | ExternalService.DeadlineExceeded.t()}
  @type not_served :: {:error, ExternalService.ServiceSaturated.t() | ExternalService.NoEndpoint.t()}
  @type error ::
          retries_exhausted()
          | circuit_breaker_open()
          | rate_limited()
          | service_not_started()
          | out_of_time()
          | not_served()

  defguardp is_retry(retry) when is_struct(retry, RetryOptions) or is_list(retry)

  @doc """
  Starts a service, or starts it afresh if it is running: with a closed breaker and no history.

  Raises `ExternalService.ValidationError` for an option that is unknown or of the wrong type, and `ArgumentError` for
  options that contradict each other; then nothing has changed. The options are listed in the module's documentation.
  """
  @spec start(service(), options()) :: :ok
  def start(service, options \\ []), do: Lifecycle.start(service, options)

  @doc """
  Changes options of a running service and leaves the rest as it is.

  The options are merged over the service's. What they do not touch goes on: the breaker with its failures, what was taken
  from the rate limit, who holds a slot and who waits for one. Other limits hold at once: more slots let waiters in, fewer
  are taken away as calls end.

  Raises like `start/2`, and `ExternalService.ServiceNotStarted` if there is no such service; then nothing has changed.

      iex> ExternalService.start(:reports, concurrency: [limit: 1])
      iex> ExternalService.reconfigure(:reports, concurrency: [limit: 4])
      :ok
      iex> ExternalService.Concurrency.limit(:reports)
      4
  """
  @spec reconfigure(service(), options()) :: :ok
  def reconfigure(service, options), do: Lifecycle.reconfigure(service, options)

  @doc "Stops a service. Stopping one that is not started does nothing."
  @spec stop(service()) :: :ok
  def stop(service), do: Lifecycle.stop(service)

  @doc """
  Calls `fun` with the service's retry options.

  The function says how the attempt went. `:retry` and `{:retry, reason}` are failures: the attempt is counted by the
  breaker and repeated. Any other value is the result, `{:error, reason}` included. An exception that is not listed in
  `:retry_exceptions` passes through untouched.

  Instead of a result a call may return:

    * `{:error, %ExternalService.RetriesExhausted{}}` - every attempt failed; if the last one raised a retried exception,
      that exception is raised instead
    * `{:error, %ExternalService.CircuitBreakerOpen{}}` - the breaker let no (further) attempt through
    * `{:error, %ExternalService.RateLimited{}}` - its turn would not have come within the rate limit's `:wait`
    * `{:error, %ExternalService.ServiceSaturated{}}` - it got no slot
    * `{:error, %ExternalService.AttemptTimeout{}}` - every attempt failed, the last one by taking longer than `:timeout`
    * `{:error, %ExternalService.DeadlineExceeded{}}` - the time for the call is over
    * `{:error, %ExternalService.NoEndpoint{}}` - none of the service's endpoints can be called
    * `{:error, %ExternalService.ServiceNotStarted{}}`

  Or what the service's `:fallback` has in the place of any of these.
  """
  @spec call(service(), retriable_function()) :: error() | term()
  def call(service, fun) when is_function(fun), do: Call.run(:return, service, nil, fun)

  @doc """
  Calls `fun` with options for this call: retry options in a keyword list on top of the service's, or an
  `ExternalService.RetryOptions` struct in their place.

  The keyword list may also hold:

  #{Options.docs(:call)}

      iex> ExternalService.start(:search)
      iex> {:error, error} = ExternalService.call(:search, [max_attempts: 1], fn -> :retry end)
      iex> error.context.attempts
      1
  """
  @spec call(service(), retry(), retriable_function()) :: error() | term()
  def call(service, retry, fun) when is_retry(retry) and is_function(fun), do: Call.run(:return, service, retry, fun)

  @doc "The same as `call/2`, but raises the errors that it returns."
  @spec call!(service(), retriable_function()) :: term()
  def call!(service, fun) when is_function(fun), do: Call.run(:raise, service, nil, fun)

  @doc "The same as `call/3`, but raises the errors that it returns."
  @spec call!(service(), retry(), retriable_function()) :: term()
  def call!(service, retry, fun) when is_retry(retry) and is_function(fun), do: Call.run(:raise, service, retry, fun)

  @doc """
  Makes the call of `call/2` in a task of its own, which `Task.await/2` waits for.

  The task is linked to the caller: an exception that the call raises ends both.

      iex> ExternalService.start(:letters)
      iex> task = ExternalService.call_async(:letters, fn -> {:ok, :delivered} end)
      iex> Task.await(task)
      {:ok, :delivered}
  """
  @spec call_async(service(), retriable_function()) :: Task.t()
  def call_async(service, fun) when is_function(fun), do: Async.call(service, nil, fun)

  @doc "Makes the call of `call/3` in a task of its own, like `call_async/2`. Raises for options that `call/3` refuses."
  @spec call_async(service(), retry(), retriable_function()) :: Task.t()
  def call_async(service, retry, fun) when is_function(fun), do: Async.call(service, retry, fun)

  @doc "Returns a stream that calls `fun` with each element, several at a time: `call_async_stream/5` with no options."
  @spec call_async_stream(Enumerable.t(), service(), mapper()) :: Enumerable.t()
  def call_async_stream(enum, service, fun) when is_function(fun, 1), do: Async.stream(enum, service, nil, [], fun)

  @doc """
  The same as `call_async_stream/5` with one list of options: those of the calls, or those of `Task.async_stream/3`.

  A list is told by its keys; `:timeout` is taken as the stream's. Keys of both in one list raise `ArgumentError`, as do
  unknown ones. An `ExternalService.RetryOptions` struct is for the calls.

      iex> ExternalService.start(:inbox)
      iex> [1, 2] |> ExternalService.call_async_stream(:inbox, [max_concurrency: 2], &(&1 * 10)) |> Enum.to_list()
      [ok: 10, ok: 20]
      iex> stream = ExternalService.call_async_stream([1], :inbox, [max_attempts: 1], fn _ -> :retry end)
      iex> [ok: {:error, %ExternalService.RetriesExhausted{}}] = Enum.to_list(stream)
  """
  @spec call_async_stream(Enumerable.t(), service(), retry(), mapper()) :: Enumerable.t()
  def call_async_stream(enumerable, service, options, fun) when is_function(fun, 1) do
    {retry, async} = Async.split!(options)
    Async.stream(enumerable, service, retry, async, fun)
  end

  @doc """
  Returns a stream that makes a call of the service with each element, `fun` getting the element.

  It is a `Task.async_stream/3` with `async` as its options, and so gives `{:ok, result of the call}` for each element.
  `retry` are options of `call/3`; `nil` stands for the service's own.
  """
  @spec call_async_stream(Enumerable.t(), service(), retry() | nil, keyword(), mapper()) :: Enumerable.t()
  def call_async_stream(enumerable, service, retry, async, fun) when is_list(async) and is_function(fun, 1),
    do: Async.stream(enumerable, service, retry, async, fun)

  @doc "Returns whether a call would be let through now; `false` if the service is not started."
  @spec available?(service()) :: boolean()
  def available?(service), do: CircuitBreaker.ask(service) == :ok

  @doc "Returns whether the breaker refuses calls now; `false` if the service is not started."
  @spec blown?(service()) :: boolean()
  def blown?(service), do: CircuitBreaker.ask(service) == :blown

  @doc "Returns whether all of these services are available."
  @spec all_available?([service()]) :: boolean()
  def all_available?(services), do: Enum.all?(services, &available?/1)

  @doc """
  Returns the state of the service's breaker, or `{:error, :not_found}` if it is not started.

  It is right without any traffic: a breaker whose open time is over reads `:half_open`, or `:closed`.
  """
  @spec state(service()) :: state() | {:error, :not_found}
  def state(service), do: Counts.state(service)

  @doc """
  Returns what the service's breaker has counted, or `{:error, :not_found}` if it is not started.

    * `:calls`, `:successes`, `:failures`, `:slow` and `:rate` (the share that failed) inside `:window`. Without a rule that
      needs them calls are not counted: then `:failures` are those inside `:within`, and the others are `nil`
    * `:consecutive` - failures since the last success; `nil` where no rule has successes reported
    * `:rejected`, `:ignored` - calls refused, and reported with `:ignore`, since the last change of state
    * `:state`, `:changed_at` - the state, and since when, in milliseconds since 1970 or of the virtual clock
    * `:retry_after` - milliseconds until calls may be let through again, 0 if they are, or `:infinity`
    * `:probes` - probes that are out; `:reason` - what the state was forced with

      iex> ExternalService.start(:tape, circuit_breaker: [failure_rate: 0.5, min_calls: 5])
      iex> ExternalService.call(:tape, fn -> :fine end)
      iex> ExternalService.call(:tape, [max_attempts: 1], fn -> :retry end)
      iex> Map.take(ExternalService.counts(:tape), [:calls, :failures, :rate, :state])
      %{calls: 2, failures: 1, rate: 0.5, state: :closed}
  """
  @spec counts(service()) :: map() | {:error, :not_found}
  def counts(service), do: Counts.of(service)

  @doc """
  Returns a text that says what options amount to: how long a call retries, what opens the breaker, who waits for how long.

  The service is the name of a started one, or a keyword list of options for `start/2`: one that could not be started
  raises as there. At the end stands what is suspicious about the options, if anything is.

      iex> text = ExternalService.explain(name: :mail, retry: [base: 100, jitter: true])
      iex> text |> String.split("\\n") |> Enum.slice(2, 2)
      ["  retry", "    window       1.5s nominal, +/- 10% with jitter"]
  """
  @spec explain(service() | options()) :: String.t()
  def explain(service), do: Explanation.of(service)

  @doc """
  Returns what happens to calls if the service behaves as `scenario` says, without waiting for it.

  The service is the name of a started one, or a keyword list of options for `start/2`, perhaps with a `:name`. Raises
  like `start/2`, `ExternalService.ServiceNotStarted` for a name that is not started, and `FunctionClauseError` for what is
  no scenario. Scenarios and options are those of `ExternalService.Simulation`.

      iex> options = [circuit_breaker: [tolerate: 4], retry: [base: 100, max_attempts: 3]]
      iex> simulation = ExternalService.simulate(options, {:always_failing, 50})
      iex> {simulation.opens_after, simulation.attempts, simulation.worst_call}
      {2, 5, 450}
  """
  @spec simulate(service() | options(), scenario(), keyword()) :: Simulation.t()
  def simulate(service, scenario, options \\ []), do: Simulation.of(service, scenario, options)

  @doc """
  Forces the service's breaker open: every call is refused, whatever happens, until `close/1` or `reset/1`.

  The state is kept when the service is started afresh, and ends when it is stopped. Returns `{:error, :not_found}` if it
  is not started or has no breaker.

  #{Options.docs(:open)}

      iex> ExternalService.start(:db)
      iex> ExternalService.open(:db, reason: :maintenance)
      :ok
      iex> ExternalService.available?(:db)
      false
      iex> ExternalService.close(:db)
      :ok
  """
  @spec open(service(), keyword()) :: :ok | {:error, :not_found}
  def open(service, options \\ []),
    do: Installed.act(service, :open, [Validation.validate!(:open, options)], {:error, :not_found})

  @doc "Closes the service's breaker, whatever state it is in, or returns `{:error, :not_found}`."
  @spec close(service()) :: :ok | {:error, :not_found}
  def close(service), do: Installed.act(service, :close, [])

  @doc """
  Lets every call through until `close/1` or `reset/1`: the breaker goes on counting, but no rule opens it.

  Like a forced open state it is kept when the service is started afresh. `{:error, :not_found}`: it is not started.
  """
  @spec bypass(service()) :: :ok | {:error, :not_found}
  def bypass(service), do: Installed.act(service, :bypass, [])

  @doc "Closes the service's breaker and forgets its failures, or returns `{:error, :not_found}`."
  @spec reset(service()) :: :ok | {:error, :not_found}
  def reset(service), do: CircuitBreaker.reset(service)

  @doc "Returns whether a call would have to wait for the rate limit now; `false` without one, or if it is not started."
  @spec rate_limited?(service()) :: boolean()
  def rate_limited?(service), do: match?({:wait, _ms}, RateLimiter.peek(service))

  @doc "Returns whether a call would find no free slot now; `false` without a concurrency limit, or if it is not started."
  @spec saturated?(service()) :: boolean()
  def saturated?(service), do: Concurrency.saturated?(service)

  @doc """
  Resets the breaker, the rate limit and the concurrency limit of a service, in this order.

  Returns `{:error, :not_found}` if it is not started.
  """
  @spec reset_all(service()) :: :ok | {:error, :not_found}
  def reset_all(service) do
    with :ok <- CircuitBreaker.reset(service), :ok <- RateLimiter.reset(service), do: Concurrency.reset(service)
  end

  @doc """
  Gives a service other endpoints: a list, or a function that returns one.

  Endpoints that stay keep their breakers, their counts and what the balancer knows of them; those that were draining take
  calls again. Calls in flight at those that are gone go on. Raises like `start/2`, and
  `ExternalService.ServiceNotStarted` if there is no such service.

      iex> ExternalService.start(:shop, endpoints: ["a", "b"])
      iex> ExternalService.put_endpoints(:shop, ["b", "c"])
      :ok
      iex> for %{endpoint: endpoint, state: state} <- ExternalService.endpoints(:shop), do: {endpoint, state}
      [{"b", :closed}, {"c", :closed}]
  """
  @spec put_endpoints(service(), [term()] | (() -> [term()])) :: :ok
  def put_endpoints(service, endpoints), do: Lifecycle.put_endpoints(service, endpoints)

  @doc """
  Returns what is known of the service's endpoints, or `{:error, :not_found}` if it is not started or has none.

  A map for each, in the order of the list; `ExternalService.Endpoints` says what is in it.
  """
  @spec endpoints(service()) :: [map()] | {:error, :not_found}
  def endpoints(service), do: Endpoints.list(service)

  @doc """
  Sends no new calls to an endpoint; those in flight go on. `put_endpoints/2` with it on the list ends that.

  Returns `{:error, :not_found}` if there is no such endpoint.
  """
  @spec drain(service(), term()) :: :ok | {:error, :not_found}
  def drain(service, endpoint), do: Endpoints.drain(service, endpoint)

  @doc "Returns the names of the started services, in no particular order."
  @spec services() :: [service()]
  def services, do: Service.names()

  @doc """
  Defines a service in a module.

  The options are those of `start/2` and `:name`, by default the module. The module gets `child_spec/1` and
  `start_link/1`, whose argument is merged over the options (keyword lists key by key, at every depth; anything else is
  replaced), and these functions without the service: `call`, `call!`, `call_async`, `call_async_stream`, `available?`,
  `blown?`, `saturated?`, `state`, `counts`, `open`, `close`, `bypass`, `reset`, `reset_all`, `reconfigure`, `endpoints`,
  `put_endpoints` and `drain`.

  The process that `start_link/1` makes holds nothing: its end does not stop the service, and when a supervisor starts it
  again the service starts afresh.

  Anonymous functions may stand in the options; then the options are evaluated each time the service is started, and
  otherwise once, when the module is compiled.
  """
  defmacro __using__(options), do: Definition.quoted(options)
end
