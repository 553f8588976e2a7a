defmodule ExternalService.Lifecycle do
  # Starting, changing and stopping: from options to a `Service`, and back to nothing.
  @moduledoc false

  alias ExternalService.CircuitBreaker.{Installed, Settings}
  alias ExternalService.{CircuitBreaker, Concurrency, ConfigCheck, Configuration, Endpoints, Fallback, Instances}
  alias ExternalService.{Options, RateLimiter, Retry, RetryOptions}
  alias ExternalService.{Service, ServiceNotStarted, Validation, VirtualClock}

  # `module` is the one that uses the library, if it is one's.
  @spec start(ExternalService.service(), keyword(), module() | nil) :: :ok
  def start(name, given, module \\ nil) do
    options = checked(name, given)
    Service.alone(name, fn -> replace(name, options, module, nil) end)
  end

  @doc "Returns what follows from the options of a service that is not started, or raises as starting it would."
  @spec figures(ExternalService.service(), keyword(), module() | nil) :: Configuration.t()
  def figures(name, given, module) do
    options = checked(name, given)
    Fallback.check!(options[:fallback], module)
    {retry, breaker} = resolve(name, options, nil)
    Configuration.new(name, options, retry, breaker)
  end

  @doc """
  Makes the service that these options describe and keeps it nowhere, or raises as starting it would.

  It has the library's own backends, whichever are asked for: others may act on things that there is only one of. Of a
  service with endpoints it is one of them.
  """
  @spec rehearse(ExternalService.service(), keyword()) :: Service.t()
  def rehearse(name, given) do
    options = name |> checked(given) |> Keyword.delete(:endpoints)
    {retry, breaker} = resolve(name, options, nil)
    options = if options[:rate_limit], do: put_in(options, [:rate_limit, :backend], RateLimiter.Local), else: options
    build(name, options, retry, Keyword.put(breaker, :backend, {CircuitBreaker.Local, []}), %Service{}, nil)
  end

  defp checked(name, given) do
    check_wait!(name, given)
    Validation.validate!(:start, Options.merge(defaults(), given))
  end

  @spec reconfigure(ExternalService.service(), keyword()) :: :ok
  def reconfigure(name, changes) do
    check_wait!(name, changes)
    Validation.check_given!(:start, changes)

    Service.alone(name, fn ->
      service = running!(name)
      replace(name, Validation.validate!(:start, changed(service, changes)), service.module, service)
    end)
  end

  @doc "Gives a service other endpoints; those that stay keep what is known of them."
  @spec put_endpoints(ExternalService.service(), [term()] | (() -> [term()])) :: :ok
  def put_endpoints(name, endpoints) do
    Validation.check_given!(:start, endpoints: endpoints)

    Service.alone(name, fn ->
      service = running!(name)
      if service.options[:endpoints] == nil, do: raise(ArgumentError, "#{inspect(name)} was started without endpoints")
      options = Keyword.put(service.options, :endpoints, endpoints)
      # As if it had had none: they are given anew, even if they are the same.
      replace(name, options, service.module, put_in(service.options[:endpoints], nil))
    end)
  end

  defp running!(name), do: Service.started(name) || raise(ServiceNotStarted, context: %{service: name})

  @spec stop(ExternalService.service()) :: :ok
  def stop(name) do
    Service.alone(name, fn ->
      case Service.started(name) do
        nil ->
          :ok

        %Service{breaker: breaker, instances: instances} ->
          Service.delete(name)
          Installed.remove(name, breaker)
          Instances.forget(instances)
      end
    end)
  end

  defp defaults do
    defaults = Application.get_env(:external_service, :defaults, [])
    Validation.check_given!(:start, defaults, [:defaults])
    defaults
  end

  # Retry options change as they do for a call: a keyword list only what it names, a struct all.
  defp changed(service, changes) do
    {retry, changes} = Keyword.pop(changes, :retry, [])
    retry = RetryOptions.merge(service.retry, budget(retry, service.retry), [:retry])
    service.options |> Options.merge(changes) |> Keyword.put(:retry, retry)
  end

  # A call has no budget of its own, so it is only here that one is changed.
  defp budget([_ | _] = retry, %{budget: old}) do
    case Keyword.fetch(retry, :budget) do
      {:ok, budget} -> Keyword.put(retry, :budget, Options.merge(old, budget))
      :error -> retry
    end
  end

  defp budget(retry, _old), do: retry

  # `kept` is the running service if only its options change; one that is started afresh keeps nothing.
  defp replace(name, options, module, kept) do
    Fallback.check!(options[:fallback], module)
    {retry, breaker} = resolve(name, options, kept)
    ConfigCheck.report(name, options, kept && kept.options)
    Settings.warn_of_faults(name, breaker)
    old = Service.started(name)
    service = %{build(name, options, retry, breaker, kept || %Service{}, old) | module: module}
    Installed.replace(name, old && old.breaker, service.breaker, fn -> Service.put(service) end)
    if old && old.instances != service.instances, do: Instances.forget(old.instances)
    :ok
  end

  defp resolve(name, options, kept) do
    retry = RetryOptions.merge(%RetryOptions{}, options[:retry], [:retry])
    schedule = retry |> RetryOptions.sampled() |> RetryOptions.schedule()
    breaker = name |> Settings.resolve(options, schedule) |> keep(options, kept)
    Retry.check_melt!(name, breaker[:melt], retry)
    {retry, breaker}
  end

  defp build(name, options, retry, breaker, kept, old) do
    clock = options[:clock]
    sleep = options[:sleep_function] || sleep(clock)
    # In this order, since what may raise must not find anything changed.
    plans =
      if options[:endpoints], do: Endpoints.plan(name, options, kept, &endpoint_settings(&1, &2, &3, {options, retry}))

    rate_limit = RateLimiter.reconfigure(kept.rate_limit, name, options[:rate_limit], sleep, clock)
    installed = breaker(name, breaker, kept, old, {options, plans})

    %Service{
      name: name,
      version: make_ref(),
      breaker: installed,
      breaker_options: breaker,
      watch: Installed.watch(breaker),
      rate_limit: rate_limit,
      concurrency: Concurrency.reconfigure(kept.concurrency, name, shared_limit(options), clock),
      part: if(options[:endpoints], do: &Endpoints.part/2, else: &Instances.get/2),
      instances: kept.instances,
      origin: origin(kept, breaker, options),
      maker: Installed.maker(breaker),
      melt: breaker[:melt],
      budget: Retry.budget(kept, retry, VirtualClock.handle(clock)),
      timeout: options[:timeout],
      deadline: options[:deadline],
      fallback: options[:fallback],
      retry: retry,
      schedule: Retry.schedule(retry),
      clock: VirtualClock.handle(clock),
      sleep: sleep,
      telemetry: options[:telemetry],
      options: options
    }
  end

  defp breaker(name, settings, kept, _old, {_options, nil}), do: plain_breaker(name, settings, kept)
  defp breaker(name, _settings, kept, old, {options, plans}), do: Endpoints.install(name, options, kept, old, plans)

  # The breaker options of one endpoint, `own` being those that it has on top of the service's, and whether its window is
  # sized by itself.
  defp endpoint_settings(name, own, kept, {options, retry}) do
    merged = Options.merge(options[:circuit_breaker], own || [])
    breaker = Validation.validate!(:circuit_breaker, merged, [:endpoints, :circuit_breaker])
    schedule = retry |> RetryOptions.sampled() |> RetryOptions.schedule()
    settings = Settings.resolve(name, Keyword.put(options, :circuit_breaker, breaker), schedule)
    auto? = breaker[:within] == :auto
    {if(kept && kept.auto? && auto?, do: keep_window(settings, kept.settings), else: settings), auto?}
  end

  # A limit for each endpoint is theirs.
  defp shared_limit(options), do: if(options[:concurrency][:per] != :endpoint, do: options[:concurrency])

  # What the instances of a service were made of: another one is another origin.
  defp origin(%Service{origin: origin, breaker_options: settings, options: old}, settings, options) do
    made_of = [:rate_limit, :concurrency, :clock]
    if Keyword.take(old || [], made_of) == Keyword.take(options, made_of), do: origin, else: make_ref()
  end

  defp origin(_kept, _settings, _options), do: make_ref()

  defp plain_breaker(name, settings, %Service{breaker_options: old, breaker: breaker}) do
    if old != nil and not match?({Endpoints, _}, breaker) and
         Keyword.delete(old, :melt) == Keyword.delete(settings, :melt),
       do: breaker,
       else: Installed.install(name, settings)
  end

  # What a breaker is made of does not change with how retries go or what melts: a window that was sized by itself stays.
  defp keep(settings, options, %Service{breaker_options: old, options: given}) when old != nil do
    auto? = given[:circuit_breaker][:within] == :auto and options[:circuit_breaker][:within] == :auto
    if auto?, do: keep_window(settings, old), else: settings
  end

  defp keep(settings, _options, _kept), do: settings

  defp keep_window(settings, old) do
    same? = Keyword.drop(settings, [:melt, :within]) == Keyword.drop(old, [:melt, :within])
    if same?, do: Keyword.put(settings, :within, old[:within]), else: settings
  end

  defp check_wait!(name, options) do
    if match?({:ok, :infinity}, fetch_in(options, [:concurrency, :wait])) do
      raise ArgumentError,
            "ExternalService.start(#{inspect(name)}, ...) sets concurrency: [wait: :infinity], which is not allowed. " <>
              "A call that waits for ever for a slot waits as long as the service hangs, and so does every call behind " <>
              "it. Give a number of milliseconds, or false to refuse a call when there is no free slot."
    end
  end

  defp fetch_in(value, []), do: {:ok, value}

  defp fetch_in(options, [key | path]) do
    with true <- Keyword.keyword?(options), {:ok, value} <- Keyword.fetch(options, key), do: fetch_in(value, path)
  end

  defp sleep(nil), do: &Retry.sleep/1
  defp sleep(clock), do: &VirtualClock.wait(clock, &1)
end
